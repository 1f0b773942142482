-- What mode "logical" needs beside: a publication of the attached tables, and who reads the replication slot.
BEGIN;
SET LOCAL lock_timeout = '10s';
SET LOCAL client_min_messages = warning;

ALTER TABLE app.tidings_attachment ADD COLUMN IF NOT EXISTS by_log boolean NOT NULL DEFAULT false;

-- The tidings that reads the slot, with a lease. Everything before "position" is in the outbox.
CREATE TABLE IF NOT EXISTS app.tidings_slot (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    holder uuid,
    term bigint NOT NULL DEFAULT 0,
    held_until timestamptz,
    position pg_lsn,
    -- False while the slot is made anew, so that nobody takes it for the one before.
    is_whole boolean NOT NULL DEFAULT true
);
INSERT INTO app.tidings_slot DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Captures the changes of a table under an entity's code by logical replication. The key is a column of type uuid that the
-- replica identity of the table has, since nothing else is known of a deleted row. Of other columns nothing is sent,
-- unless the replica identity is the whole row.
CREATE OR REPLACE FUNCTION app.tidings_publish(p_relation regclass, p_entity_code varchar, p_key name) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    identity "char";
    persistence "char";
    index_columns smallint[];
    columns text;
BEGIN
    PERFORM app.tidings_check_key(p_relation, p_key);
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE EXCEPTION 'mode "logical" needs a database with wal_level = logical, and wal_level is %',
            current_setting('wal_level') USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT c.relreplident, c.relpersistence INTO identity, persistence FROM pg_class AS c WHERE c.oid = p_relation;
    IF persistence <> 'p' THEN
        RAISE EXCEPTION '% is temporary or unlogged, and its changes are not in the log of the database', p_relation
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF identity <> 'f' THEN
        SELECT i.indkey::smallint[] INTO index_columns FROM pg_index AS i
        WHERE i.indrelid = p_relation AND CASE identity WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END;
        IF index_columns IS NULL THEN
            RAISE EXCEPTION '% has no primary key, so nobody would know which of its rows was deleted', p_relation
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = format('add a primary key, or ALTER TABLE %s REPLICA IDENTITY FULL', p_relation);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = p_relation AND a.attname = p_key
                       AND a.attnum = ANY (index_columns)) THEN
            RAISE EXCEPTION 'column % of % is not in the replica identity of the table, which is its primary key unless said otherwise',
                quote_ident(p_key), p_relation
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = format('ALTER TABLE %s REPLICA IDENTITY USING INDEX of a unique index with it, or FULL', p_relation);
        END IF;
        SELECT format(' (%s)', string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)) INTO columns
        FROM pg_attribute AS a WHERE a.attrelid = p_relation AND a.attnum = ANY (index_columns);
    END IF;
    -- One attach at a time.
    PERFORM pg_advisory_xact_lock(1953064041, 1);
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'tidings_changes') THEN
        CREATE PUBLICATION tidings_changes WITH (publish_via_partition_root = true);
    END IF;
    PERFORM app.tidings_detach(p_relation);
    INSERT INTO app.tidings_attachment (relation, entity_code, key_column, by_log)
    VALUES (p_relation, p_entity_code, p_key, true);
    EXECUTE format('ALTER PUBLICATION tidings_changes ADD TABLE %s%s', p_relation, coalesce(columns, ''));
END
$$;

-- Puts attached tables into the publication that are not in it.
CREATE OR REPLACE FUNCTION app.tidings_publish_again() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lost record;
BEGIN
    FOR lost IN
        SELECT a.relation, a.entity_code, a.key_column FROM app.tidings_attachment AS a
        WHERE a.by_log AND EXISTS (SELECT FROM pg_class AS c WHERE c.oid = a.relation)
          AND NOT EXISTS (SELECT FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
                          WHERE p.pubname = 'tidings_changes' AND r.prrelid = a.relation)
    LOOP
        PERFORM app.tidings_publish(lost.relation, lost.entity_code, lost.key_column);
    END LOOP;
END
$$;

COMMIT;
