"""Jobs with due times: `@job(cron=…)` and `@job(every=…)`. One row for each kind in `holdfast.periodic_jobs`."""
