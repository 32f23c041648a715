-- All objects in the current schema that are part of a registry's tables or act on these tables: kind, name, properties.
WITH own AS (
    SELECT c.oid, c.relname, c.relkind, c.relrowsecurity, c.relpersistence
    FROM pg_class AS c
    WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    AND c.relname IN ('registry', 'device', 'credential', 'manual_quarantine', 'fingerprint', 'fingerprint_band',
                      'gateway', 'lease', 'unleased_range', 'newest_session', 'ticket', 'pair', 'attest_group', 'prover',
                      'period', 'round_counter', 'attest_round', 'appraisal', 'evidence', 'event_log', 'api_user',
                      'api_session', 'api_response', 'gateway_record', 'gateway_state', 'signer')
)
SELECT 'relation', CAST(own.relname AS TEXT), concat_ws(' ', own.relkind, own.relpersistence, own.relrowsecurity)
FROM own
UNION ALL
SELECT 'column', own.relname || '.' || a.attname,
    concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.atthasdef, co.collname)
FROM own JOIN pg_attribute AS a ON a.attrelid = own.oid LEFT JOIN pg_collation AS co ON co.oid = a.attcollation
WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'index', CAST(i.relname AS TEXT),
    concat_ws(' ', own.relname, x.indisunique, x.indkey, x.indpred IS NULL, x.indexprs IS NULL)
FROM own JOIN pg_index AS x ON x.indrelid = own.oid JOIN pg_class AS i ON i.oid = x.indexrelid
UNION ALL
SELECT 'constraint', own.relname || '.' || k.conname, concat_ws(' ', k.contype, k.confupdtype, k.confdeltype)
FROM own JOIN pg_constraint AS k ON k.conrelid = own.oid WHERE k.contype <> 'n'
UNION ALL
SELECT 'trigger', CAST(t.tgname AS TEXT), CAST(own.relname AS TEXT)
FROM own JOIN pg_trigger AS t ON t.tgrelid = own.oid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'rule', CAST(r.rulename AS TEXT), CAST(own.relname AS TEXT)
FROM own JOIN pg_rewrite AS r ON r.ev_class = own.oid
UNION ALL
SELECT 'policy', CAST(p.polname AS TEXT), CAST(own.relname AS TEXT)
FROM own JOIN pg_policy AS p ON p.polrelid = own.oid
UNION ALL
SELECT 'child', CAST(c.relname AS TEXT), CAST(own.relname AS TEXT)
FROM own JOIN pg_inherits AS h ON h.inhparent = own.oid JOIN pg_class AS c ON c.oid = h.inhrelid
UNION ALL
SELECT 'function', CAST(f.proname AS TEXT), concat_ws(' ', pg_get_function_identity_arguments(f.oid), f.prosrc)
FROM pg_proc AS f
WHERE f.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND f.proname = 'typeof'
