//! Capabilities that a thread drops.

use linewarden_dataplane::capability::{Capability, keep_only, missing};
use linewarden_harness::skip;

#[test]
fn dropped_capabilities_are_missing_in_the_thread_and_its_children_only() {
    let before = missing(&[Capability::NetRaw]);
    let sets = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let sets = status.lines().filter(|line| {
            ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"]
                .iter()
                .any(|set| line.starts_with(set))
        });
        sets.map(|line| u64::from_str_radix(line[7..].trim(), 16).unwrap())
            .collect::<Vec<_>>()
    };
    let empty_sets = std::thread::spawn(move || {
        keep_only(&[]).unwrap();
        (sets(), std::thread::spawn(sets).join().unwrap())
    });
    assert_eq!(empty_sets.join().unwrap(), (vec![0; 4], vec![0; 4]));
    assert_eq!(missing(&[Capability::NetRaw]), before);
    if !before.is_empty() {
        skip!("keeping one capability needs CAP_NET_RAW");
    }
    let kept_sets = std::thread::spawn(move || {
        keep_only(&[Capability::NetRaw]).unwrap();
        sets()
    });
    assert_eq!(kept_sets.join().unwrap(), [0, 1 << 13, 1 << 13, 0]);
}
