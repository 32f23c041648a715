//! A table, page by page, in the order of its key.

use super::{ColumnKind, Table};
use crate::error::{DatabaseError, RegistryError, Result};
use crate::sql::{Builder, Cell, Connection, FromRow, Row, Value};

/// A cursor over the records of a table.
pub(super) struct Pages<'t> {
    table: &'t Table,
    /// The key of the last record: empty at the start, `None` at the end.
    after: Option<Vec<Value>>,
}

/// The values of all columns of a record, of any type.
struct RecordCells(Vec<Cell>);

impl FromRow for RecordCells {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        row.cells().map(Self)
    }
}

impl<'t> Pages<'t> {
    pub(super) fn new(table: &'t Table) -> Self {
        Self {
            table,
            after: Some(Vec::new()),
        }
    }

    /// The next records; `None` at the end.
    pub(super) async fn next(&mut self, connection: &mut Connection) -> Result<Option<Vec<Vec<Value>>>> {
        let Some(after) = self.after.take() else {
            return Ok(None);
        };
        let Table {
            name,
            source,
            key,
            columns,
            page_records,
        } = self.table;
        let mut query = Builder::new("SELECT ");
        query.push(key.join(", "));
        for (column, _) in *columns {
            query.push(", ").push(name).push('.').push(column);
        }
        query.push(" FROM ").push(source);
        if !after.is_empty() {
            query.push(" WHERE (").push(key.join(", ")).push(") > ");
            query.push_list(after.into_iter());
        }
        query
            .push(" ORDER BY ")
            .push(key.join(", "))
            .push(" LIMIT ")
            .push_bind(*page_records);
        let page: Vec<RecordCells> = query.build().fetch_all(connection).await?;
        let is_full = i64::try_from(page.len()).is_ok_and(|count| count >= *page_records);
        let mut records = Vec::with_capacity(page.len());
        for RecordCells(mut cells) in page {
            let values = cells.split_off(key.len());
            if is_full {
                self.after = Some(
                    cells
                        .into_iter()
                        .map(|cell| self.key(cell))
                        .collect::<Result<_>>()?,
                );
            }
            let values = values.into_iter().zip(*columns);
            let record = values.map(|(cell, (column, kind))| self.value(cell, column, *kind));
            records.push(record.collect::<Result<Vec<Value>>>()?);
        }
        Ok((!records.is_empty()).then_some(records))
    }

    fn key(&self, cell: Cell) -> Result<Value> {
        match cell {
            Cell::Integer(value) => Ok(value.into()),
            Cell::Text(value) => Ok(value.into()),
            Cell::Bytes(value) => Ok(value.into()),
            Cell::Null | Cell::Other => Err(self.damaged("key")),
        }
    }

    fn value(&self, cell: Cell, column: &str, kind: ColumnKind) -> Result<Value> {
        match (cell, kind) {
            (Cell::Integer(value), ColumnKind::Integer) => Ok(value.into()),
            (Cell::Text(value), ColumnKind::Text) => Ok(value.into()),
            (Cell::Bytes(value), ColumnKind::Bytes) => Ok(value.into()),
            (Cell::Null, ColumnKind::Integer) => Ok(Value::Integer(None)),
            (Cell::Null, ColumnKind::Text) => Ok(Value::Text(None)),
            (Cell::Null, ColumnKind::Bytes) => Ok(Value::Bytes(None)),
            _ => Err(self.damaged(column)),
        }
    }

    fn damaged(&self, column: &str) -> RegistryError {
        RegistryError::Database(DatabaseError::Damaged {
            detail: format!(
                "table {} has a value of a wrong type in column {column}",
                self.table.name
            ),
        })
    }
}
