-- Removes the log of changes, its functions, and the schema if nothing else is in it.
BEGIN;
SET LOCAL lock_timeout = '10s';
SET LOCAL client_min_messages = warning;
DROP FUNCTION IF EXISTS app.log_entity_change(), app.cleanup_old_logs(integer), app.get_logging_stats();
DROP TABLE IF EXISTS app.logging;
DO $$
BEGIN
    DROP SCHEMA IF EXISTS app;
EXCEPTION WHEN dependent_objects_still_exist THEN
    NULL;
END
$$;
COMMIT;
