//! Counters in a file in the Prometheus text format, for programs without an HTTP server. The textfile collector of
//! `node_exporter` reads this file. Label values are from this program's own lists, never from messages.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use linewarden_files::{can_replace, replace_public};

use crate::failure::Failure;

/// The content of one file.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// Adds a counter. With a label, `values` has a count for each label value. Without a label, `values` has one count, with an
    /// empty label value.
    pub fn counter<'n>(
        &mut self,
        name: &str,
        help: &str,
        label: Option<&str>,
        values: impl IntoIterator<Item = (&'n str, u64)>,
    ) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} counter");
        for (value, count) in values {
            let labels = label.map(|label| format!("{{{label}=\"{value}\"}}"));
            let _ = writeln!(self.0, "{name}{} {count}", labels.unwrap_or_default());
        }
    }
}

/// The metrics file. A separate thread replaces the file as a whole, so that a slow disk does not block the caller.
pub struct MetricsFile(SyncSender<String>);

impl MetricsFile {
    /// Starts the thread; `path` is the value of the option `--metrics-file`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn start(path: &Path) -> Result<Self, Failure> {
        let file_error = |error| Failure::input(format!("--metrics-file {}: {error}", path.display()));
        can_replace(path).map_err(file_error)?;
        let (sender, receiver) = sync_channel(1);
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("lw-metrics".to_owned())
            .spawn(move || write(&path, receiver))?;
        Ok(Self(sender))
    }

    /// Queues a page. The page is dropped if the queue, which has one entry, is full.
    pub fn submit(&self, page: Page) {
        let _ = self.0.try_send(page.0);
    }
}

fn write(path: &Path, pages: impl IntoIterator<Item = String>) {
    let mut is_failing = false;
    for page in pages {
        let result = replace_public(path, page.as_bytes());
        if let Err(error) = &result
            && !is_failing
        {
            tracing::warn!(%error, path = %path.display(), "writing metrics failed; retrying at the next update");
        }
        is_failing = result.is_err();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_page_is_in_the_text_format_and_readable_by_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("linewarden.prom");
        let mut page = Page::default();
        page.counter("a_total", "All.", None, [("", 3)]);
        page.counter("b_total", "By why.", Some("reason"), [("old", 1), ("wrong", 0)]);
        write(&path, [page.0]);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "# HELP a_total All.\n# TYPE a_total counter\na_total 3\n# HELP b_total By why.\n# TYPE b_total counter\n\
             b_total{reason=\"old\"} 1\nb_total{reason=\"wrong\"} 0\n"
        );
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused() {
        let failure = MetricsFile::start(Path::new("/proc/none/linewarden.prom"))
            .err()
            .unwrap();
        assert_eq!(failure.code(), 2);
    }
}
