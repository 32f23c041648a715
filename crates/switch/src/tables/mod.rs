//! Match-action tables: what matches which key, and which action is then run.
