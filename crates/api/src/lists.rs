//! Pages of lists.

use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page, for `after`; null at the end.
    pub next: Option<String>,
    /// Number of damaged records of the registry, which the page does not contain.
    pub damaged_records: u64,
}

/// Parameters of a page.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct PageQuery {
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}
