"""Ingestion: files and APIs become data entries; factors, emissions and statistics follow, as one pipeline of fenced jobs.

service.py   the description of the service: start here
settings.py  its settings       policy.py, problems.py, names.py   its entries in the kernel's tables
models/      data models: modules, data entry types, columns       sources/   CSV, XLSX, Parquet, uploads, paged APIs
staging/     rows as text, and their validation by SQL             loading/   entries, factors, references, emissions
jobs/        one file for each kind of job                         scope.py   job types and slots
dispatch.py  from a request to a job in its pipeline               views/     what lists and badges show
api/         routes            cli/   commands          client/   namespace of the HTTP client        topics.py   streams
kinds.py     what a worker imports     loops.py   periodic loops     demo.py   the demo     migrations/   Alembic revisions
"""

from holdfast.services.ingestion.service import SERVICE as SERVICE
