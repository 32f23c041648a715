-- Everything in the current schema that a registry's tables consist of, or that acts on them: kind, name, what it is like.
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relrowsecurity, c.relpersistence
    FROM pg_class AS c
    WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    AND c.relname IN ('registry', 'device', 'credential', 'gateway', 'lease', 'spare', 'ticket', 'pair', 'roaming', 'attest_group',
                      'prover', 'period', 'round_number', 'attest_round', 'appraisal', 'evidence',
                      'journal', 'api_user', 'api_session', 'api_answer', 'gateway_book', 'gateway_state', 'signer',
                      'quarantine_order', 'fingerprint', 'fingerprint_band')
)
SELECT 'relation', CAST(ours.relname AS TEXT), concat_ws(' ', ours.relkind, ours.relpersistence, ours.relrowsecurity)
FROM ours
UNION ALL
SELECT 'column', ours.relname || '.' || a.attname,
    concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.atthasdef, co.collname)
FROM ours JOIN pg_attribute AS a ON a.attrelid = ours.oid LEFT JOIN pg_collation AS co ON co.oid = a.attcollation
WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'index', CAST(i.relname AS TEXT),
    concat_ws(' ', ours.relname, x.indisunique, x.indkey, x.indpred IS NULL, x.indexprs IS NULL)
FROM ours JOIN pg_index AS x ON x.indrelid = ours.oid JOIN pg_class AS i ON i.oid = x.indexrelid
UNION ALL
SELECT 'constraint', ours.relname || '.' || k.conname, concat_ws(' ', k.contype, k.confupdtype, k.confdeltype)
FROM ours JOIN pg_constraint AS k ON k.conrelid = ours.oid WHERE k.contype <> 'n'
UNION ALL
SELECT 'trigger', CAST(t.tgname AS TEXT), CAST(ours.relname AS TEXT)
FROM ours JOIN pg_trigger AS t ON t.tgrelid = ours.oid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'rule', CAST(r.rulename AS TEXT), CAST(ours.relname AS TEXT)
FROM ours JOIN pg_rewrite AS r ON r.ev_class = ours.oid
UNION ALL
SELECT 'policy', CAST(p.polname AS TEXT), CAST(ours.relname AS TEXT)
FROM ours JOIN pg_policy AS p ON p.polrelid = ours.oid
UNION ALL
SELECT 'child', CAST(c.relname AS TEXT), CAST(ours.relname AS TEXT)
FROM ours JOIN pg_inherits AS h ON h.inhparent = ours.oid JOIN pg_class AS c ON c.oid = h.inhrelid
UNION ALL
SELECT 'function', CAST(f.proname AS TEXT), concat_ws(' ', pg_get_function_identity_arguments(f.oid), f.prosrc)
FROM pg_proc AS f
WHERE f.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND f.proname = 'typeof'
