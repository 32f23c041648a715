//! Lists, which are read page by page.

use linewarden_api::{List, PageQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_client::ClientError;

/// Number of items per page: the maximum number that the API returns.
const PAGE_ITEMS: u32 = 1_000;

/// Calls `on_item` for each item of a list; returns the number of damaged records.
///
/// Ends after `limit` items, or when standard output is closed.
pub async fn for_each_item<T>(
    limit: Option<u64>,
    output: Output,
    mut read_page: impl AsyncFnMut(PageQuery) -> Result<List<T>, ClientError>,
    mut on_item: impl FnMut(T) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut remaining, mut after, mut damaged_records) = (limit.unwrap_or(u64::MAX), None, 0);
    while remaining > 0 {
        let count = u32::try_from(remaining).unwrap_or(PAGE_ITEMS).min(PAGE_ITEMS);
        let page = read_page(PageQuery {
            limit: Some(count),
            after,
        });
        let page = page.await?;
        damaged_records += page.damaged_records;
        for item in page.items {
            if remaining == 0 {
                break;
            }
            remaining -= 1;
            on_item(item)?;
        }
        after = page.next;
        if after.is_none() || !output.has_reader() {
            break;
        }
    }
    Ok(damaged_records)
}

/// Reads a complete list.
pub async fn read_all<T>(
    mut read_page: impl AsyncFnMut(PageQuery) -> Result<List<T>, ClientError>,
) -> Result<List<T>, Failure> {
    let mut list = List {
        items: Vec::new(),
        next: None,
        damaged_records: 0,
    };
    loop {
        let page = read_page(PageQuery {
            limit: Some(PAGE_ITEMS),
            after: list.next,
        });
        let page = page.await?;
        list.items.extend(page.items);
        list.damaged_records += page.damaged_records;
        list.next = page.next;
        if list.next.is_none() {
            return Ok(list);
        }
    }
}

/// Fails if records were omitted from a list because they are damaged.
pub fn check_damaged(damaged_records: u64) -> Result<(), Failure> {
    match damaged_records {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "damaged records omitted: {count}; run `registry check`"
        ))),
    }
}
