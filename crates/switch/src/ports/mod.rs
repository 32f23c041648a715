//! Where packets come from and go to: network interfaces, capture files, memory.
