//! Monitoring of writing transactions.

/// A monitor of writing transactions, called in the task of the transaction.
pub trait TransactionMonitor: Send + Sync {
    /// Called when a transaction is requested, before it may wait for other transactions. Returns its observer, or `None`.
    fn observer(&self) -> Option<Box<dyn TransactionObserver>>;
}

/// An observer of one transaction; dropped at the end of the transaction.
pub trait TransactionObserver: Send + Sync {
    /// The transaction has started and holds the write lock.
    fn started(&mut self);
    /// The transaction was committed; without this call it was rolled back.
    fn committed(&mut self);
}
