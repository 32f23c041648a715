//! A table, page by page, in the order of its key.

use super::{Kind, Table};
use crate::error::{RegistryError, Result};
use crate::sql::{Builder, Cell, Connection, FromRow, Row, Value};

/// The walk.
pub(super) struct Pages<'t> {
    table: &'t Table,
    /// The key of the last row; none yet, or `None` at the end.
    after: Option<Vec<Value>>,
}

/// All columns of a row, whatever they hold.
struct Cells(Vec<Cell>);

impl FromRow for Cells {
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

    /// The next rows; `None` at the end.
    pub(super) async fn next(&mut self, connection: &mut Connection) -> Result<Option<Vec<Vec<Value>>>> {
        let Some(after) = self.after.take() else {
            return Ok(None);
        };
        let Table {
            name,
            from,
            key,
            columns,
            page_rows,
        } = self.table;
        let mut query = Builder::new("SELECT ");
        query.push(key.join(", "));
        for (column, _) in *columns {
            query.push(", ").push(name).push('.').push(column);
        }
        query.push(" FROM ").push(from);
        if !after.is_empty() {
            query.push(" WHERE (").push(key.join(", ")).push(") > ");
            query.push_list(after.into_iter());
        }
        query
            .push(" ORDER BY ")
            .push(key.join(", "))
            .push(" LIMIT ")
            .push_bind(*page_rows);
        let found: Vec<Cells> = query.build().fetch_all(connection).await?;
        let is_full = i64::try_from(found.len()).is_ok_and(|rows| rows >= *page_rows);
        let mut rows = Vec::with_capacity(found.len());
        for Cells(mut cells) in found {
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
            let row = values.map(|(cell, (column, kind))| self.value(cell, column, *kind));
            rows.push(row.collect::<Result<Vec<Value>>>()?);
        }
        Ok((!rows.is_empty()).then_some(rows))
    }

    fn key(&self, cell: Cell) -> Result<Value> {
        match cell {
            Cell::Integer(value) => Ok(value.into()),
            Cell::Text(value) => Ok(value.into()),
            Cell::Bytes(value) => Ok(value.into()),
            Cell::Null | Cell::Other => Err(self.damaged("its key")),
        }
    }

    fn value(&self, cell: Cell, column: &str, kind: Kind) -> Result<Value> {
        match (cell, kind) {
            (Cell::Integer(value), Kind::Integer) => Ok(value.into()),
            (Cell::Text(value), Kind::Text) => Ok(value.into()),
            (Cell::Bytes(value), Kind::Bytes) => Ok(value.into()),
            (Cell::Null, Kind::Integer) => Ok(Value::Integer(None)),
            (Cell::Null, Kind::Text) => Ok(Value::Text(None)),
            (Cell::Null, Kind::Bytes) => Ok(Value::Bytes(None)),
            _ => Err(self.damaged(column)),
        }
    }

    fn damaged(&self, column: &str) -> RegistryError {
        RegistryError::Damaged {
            detail: format!(
                "in the table {} something in {column} is of another type than belongs there",
                self.table.name
            ),
        }
    }
}
