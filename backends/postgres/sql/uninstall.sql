-- Removes what install.sql has made, except for the log of changes with its functions, which belong to the application.
BEGIN;
SET LOCAL lock_timeout = '10s';
SET LOCAL client_min_messages = warning;
DO $$
DECLARE
    attached regclass;
BEGIN
    PERFORM pg_advisory_xact_lock(1953064041, 1);
    IF to_regclass('app.tidings_attachment') IS NOT NULL THEN
        FOR attached IN SELECT relation FROM app.tidings_attachment LOOP
            PERFORM app.tidings_detach(attached);
        END LOOP;
    END IF;
    IF to_regclass('app.logging') IS NOT NULL THEN
        DROP TRIGGER IF EXISTS tidings_capture ON app.logging;
    END IF;
END
$$;
DROP FUNCTION IF EXISTS app.tidings_capture_logging(), app.tidings_attach(regclass, varchar, name),
    app.tidings_detach(regclass), app.tidings_publish(regclass, varchar, name), app.tidings_publish_again(),
    app.tidings_check_key(regclass, name), app.manual_notify(varchar, uuid, integer), app.tidings_wake(),
    app.bulk_subscribe(uuid, varchar, varchar, uuid[]), app.bulk_unsubscribe(uuid, varchar, uuid[]),
    app.cleanup_connection_subscriptions(varchar), app.cleanup_user_subscriptions(uuid),
    app.cleanup_stale_subscriptions(integer), app.get_entity_subscribers(varchar, uuid),
    app.get_batch_subscribers(varchar, uuid[]), app.get_subscription_stats();
DROP TABLE IF EXISTS app.change_outbox, app.rxdb_subscription, app.tidings_node, app.tidings_horizon,
    app.tidings_attachment, app.tidings_relay, app.tidings_slot, app.tidings_schema;
DROP PUBLICATION IF EXISTS tidings_changes;
COMMIT;
