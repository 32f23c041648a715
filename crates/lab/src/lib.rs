//! Network namespaces, simulated fleets, attackers, load generators and the experiments of the papers.
