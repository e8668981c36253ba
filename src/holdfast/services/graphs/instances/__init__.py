"""Graph instances, one file per thing that can happen to one.

rows.py      the row as data: read, lock       read.py      lists, for people
create.py    a new one                         change.py    name, lifetime, limits
move.py      suspend, resume, restart, fail    delete.py    delete one or many
jobs.py      the jobs that move them           admission.py limits per owner and in all
start.py, resize.py, remove.py, algorithm.py   the handlers of those jobs
plans.py     what a start loads                events.py    what has happened
report.py    what graph servers report
"""
