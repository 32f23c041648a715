//! P4Runtime 1.4: its messages, and what both ends of a connection have to get right.
