//! Who wants to know how transactions go.

/// Is asked about each transaction that writes, in the task that wants it.
pub trait Watch: Send + Sync {
    /// One is wanted, and may have to wait for others; `None` if nobody wants to know of it.
    fn wanted(&self) -> Option<Box<dyn Watched>>;
}

/// A transaction that is watched; dropped when it is over.
pub trait Watched: Send + Sync {
    /// Nobody else writes from now on.
    fn begun(&mut self);
    /// What it wrote is there; without this it was undone.
    fn committed(&mut self);
}
