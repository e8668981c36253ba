"""Due times of a cron expression or an interval. Used by: periodic jobs (`jobs/periodic`) and periodic loops (`schedule`)."""
