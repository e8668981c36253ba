"""The kinds of jobs. Each file is one kind and begins with its handler.

flow.py       what the kinds that read a file have in common: stage, validate, judge, load
progress.py   report progress while a long step runs         report.py   what a job reports at its end
memory.py     how much memory the process of a job has needed
csv_ingest · api_ingest · factor_ingest · unit_sync · reference_ingest · emission_recalc · module_emission_recalc · aggregation
"""
