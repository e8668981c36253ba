-- Run after a restore, and after a failover to a standby that may lack the last transactions. Numbers that were given out and then lost must not be
-- given out again: an engine or a store that has seen a higher fence token refuses a lower one, and a client that waits for a lost job must not get
-- another one by its id.
SELECT setval('holdfast.fence_token', (SELECT last_value FROM holdfast.fence_token) + 1000000) AS fence_token;
SELECT setval(pg_get_serial_sequence('holdfast.jobs', 'id'),
              (SELECT coalesce(max(id), 0) FROM holdfast.jobs) + 1000000) AS next_job_id;
