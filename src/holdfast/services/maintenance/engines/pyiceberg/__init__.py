"""The embedded engine: PyIceberg and PyArrow in this process, without a JVM.

engine.py       the interface of engines                     measure.py       sizes of a table, before and after
commit.py       commits with our own validation              fence_sql.py, fence_tag.py  commits that the fence reaches
manifests.py    reads and writes manifests                   avro_files.py    their files
paths.py        one spelling for each file                   fence_scope.py   the fence of a thread's commits
plan_rewrite.py which files are rewritten together           rewrite_data_files.py
read_rows.py    rows of data files, delete files applied     rewrite_manifests.py
sort_rows.py    sorts more rows than fit into memory         expire_snapshots.py
write_files.py  data files of the target size                remove_orphan_files.py

PyIceberg's own snapshot producers are not used: version 0.12 brings back deleted rows if a merge-on-read delete and another
commit land during a compaction, and drops assertions on refs when it retries. `commit.py` compares the state of the table.
"""
