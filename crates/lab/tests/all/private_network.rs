//! The private network forwards packets and is removed completely, even when its process is killed. Needs root.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{require, wait_until};
use linewarden_lab::address::{DEVICE_HOST, DeviceAddress, GATEWAY, SERVICE};
use linewarden_lab::capability::{self, FOR_NETWORK};
use linewarden_lab::napi::NapiThreads;
use linewarden_lab::netns::NetNs;
use linewarden_lab::packet_socket::{Fanout, Options, PacketSocket, TxBatch};
use linewarden_lab::topology::{ForwardingMode, Lab, LabError, Topology};
use linewarden_switch::ports::packet::{self, PacketOptions};
use linewarden_switch::ports::{PortId, PortSet};

fn bind(netns: &NetNs, address: impl Into<SocketAddr>) -> UdpSocket {
    let address = address.into();
    let socket = netns.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Sends a datagram from `device` through the gateway to `service`, and a reply back to `device`.
fn echo_once(lab: &Lab, device: SocketAddr, service: SocketAddr) {
    let device = bind(&lab.devices, device);
    let service = bind(&lab.service, service);
    device
        .send_to(b"to the service", service.local_addr().unwrap())
        .unwrap();
    let mut buffer = [0; 64];
    let (n, from) = service.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"to the service");
    assert_eq!(from, device.local_addr().unwrap());
    service.send_to(b"and back", from).unwrap();
    let (n, from) = device.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..n], from),
        (&b"and back"[..], service.local_addr().unwrap())
    );
}

#[test]
fn devices_reach_the_service_through_the_gateway() {
    require(FOR_NETWORK);
    let lab = Lab::build(&Topology::default()).unwrap();
    echo_once(&lab, (DEVICE_HOST.v4, 0).into(), (SERVICE.v4, 0).into());
    echo_once(&lab, (DEVICE_HOST.v6, 0).into(), (SERVICE.v6, 0).into());
}

#[test]
fn with_a_switch_the_gateway_and_the_service_are_one_station() {
    require(FOR_NETWORK);
    let lab = Lab::build(&Topology {
        forwarding: ForwardingMode::Switch,
        ..Topology::default()
    })
    .unwrap();
    // Only the switch connects the interfaces: the gateway namespace has no address and does not forward.
    let mut ports = lab.gateway.run(|| {
        let mut ports = PortSet::new().unwrap();
        for (number, end) in [&lab.gateway_devices_end, &lab.gateway_service_end]
            .into_iter()
            .enumerate()
        {
            let port = packet::open(&end.name, &PacketOptions::default()).unwrap();
            ports.add(PortId::new(number as u16).unwrap(), port).unwrap();
        }
        ports
    });
    let ports = ports.as_mut().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waker = ports.waker();
        let forwarder = scope.spawn(|| {
            let mut forwarded = 0;
            while !stop.load(Ordering::Relaxed) {
                ports
                    .serve(None, |from, frame, senders| {
                        forwarded += 1;
                        senders.send(PortId::new(1 - from.get()).unwrap(), frame, &[]);
                    })
                    .unwrap();
            }
            forwarded
        });
        for service in [SERVICE, GATEWAY] {
            echo_once(&lab, (DEVICE_HOST.v4, 0).into(), (service.v4, 0).into());
            echo_once(&lab, (DEVICE_HOST.v6, 0).into(), (service.v6, 0).into());
        }
        stop.store(true, Ordering::Relaxed);
        waker.wake();
        assert!(forwarder.join().unwrap() >= 8);
    });
    let (netns, end) = lab.gateway_stack();
    assert_eq!(
        (netns.inode().unwrap(), end.mac),
        (lab.service.inode().unwrap(), GATEWAY.mac)
    );
}

#[test]
fn without_a_device_host_the_devices_interface_sends_no_frame() {
    require(FOR_NETWORK);
    let topology = Topology {
        ipv6: true,
        device_host: false,
        ..Topology::default()
    };
    let lab = Lab::build(&topology).unwrap();
    // All frames that the devices' interface has sent, from the kernel's counters.
    let text = lab
        .devices
        .run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap())
        .unwrap();
    let line = text
        .lines()
        .find(|line| line.contains(&lab.devices_end.name))
        .unwrap();
    let sent_packets: u64 = line.split_whitespace().nth(10).unwrap().parse().unwrap();
    assert_eq!(sent_packets, 0, "{text}");
}

#[test]
fn permanent_neighbors_reach_every_device_without_resolution() {
    require(FOR_NETWORK);
    let topology = Topology {
        permanent_neighbors: 10_000,
        device_host: false,
        ..Topology::default()
    };
    let lab = Lab::build(&topology).unwrap();
    let mut devices = PacketSocket::open(&lab.devices, &lab.devices_end, &Options::default()).unwrap();
    let sender = bind(&lab.gateway, (GATEWAY.v4, 0));
    for index in [0, 1, 777, 9_999] {
        let device = DeviceAddress::new(index);
        sender.send_to(&index.to_be_bytes(), (device.v4(), 5000)).unwrap();
        let mut destination = None;
        while destination.is_none() {
            assert!(
                devices.wait(Duration::from_secs(10)).unwrap(),
                "no frame arrived for device {index}"
            );
            devices.receive(1, |received| {
                let is_ipv4 = received.frame[12..14] == [0x08, 0x00];
                destination = is_ipv4.then(|| received.frame[..6].to_vec());
            });
        }
        assert_eq!(destination.unwrap(), device.mac().0);
    }
}

/// A frame of an experimental Ethernet type from one station to another.
fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    [&to[..], &from[..], &[0x88, 0xb5], &number.to_be_bytes(), &[0; 46]].concat()
}

#[test]
fn packet_sockets_deliver_batches_completely_and_in_order() {
    require(FOR_NETWORK);
    let lab = Lab::build(&Topology {
        ipv6: false,
        ..Topology::default()
    })
    .unwrap();
    let sender = PacketSocket::open(&lab.devices, &lab.devices_end, &Options::default()).unwrap();
    let mut receiver =
        PacketSocket::open(&lab.gateway, &lab.gateway_devices_end, &Options::default()).unwrap();
    let mut batch = TxBatch::new(64);
    let (mut sent, mut received) = (0u32, 0u32);
    // More frames than the ring has slots, so that the ring wraps.
    while received < 10_000 {
        while !batch.is_full() {
            assert!(batch.push(&frame(lab.gateway_devices_end.mac.0, lab.devices_end.mac.0, sent)));
            sent += 1;
        }
        assert_eq!(sender.send(&mut batch).unwrap(), 64);
        while received < sent {
            assert!(
                receiver.wait(Duration::from_secs(10)).unwrap(),
                "frame {received} is missing"
            );
            receiver.receive(usize::MAX, |frame_in| {
                assert_eq!(
                    frame_in.frame,
                    frame(lab.gateway_devices_end.mac.0, lab.devices_end.mac.0, received)
                );
                assert!(!frame_in.outgoing);
                received += 1;
            });
        }
    }
    let statistics = receiver.statistics().unwrap();
    assert_eq!((statistics.received, statistics.dropped), (sent, 0));
}

#[test]
fn a_capture_contains_frames_of_other_sockets_except_frames_that_bypass_the_qdisc() {
    require(FOR_NETWORK);
    let lab = Lab::build(&Topology {
        ipv6: false,
        ..Topology::default()
    })
    .unwrap();
    let open = |options| PacketSocket::open(&lab.devices, &lab.devices_end, &options).unwrap();
    let mut capture = open(Options {
        receive_outgoing: true,
        ..Options::default()
    });
    let hidden = open(Options::default());
    let visible = open(Options {
        bypass_qdisc: false,
        ..Options::default()
    });
    let mut batch = TxBatch::new(1);
    for (socket, number) in [(&hidden, 1), (&visible, 2)] {
        batch.push(&frame([2; 6], lab.devices_end.mac.0, number));
        assert_eq!(socket.send(&mut batch).unwrap(), 1);
    }
    assert!(capture.wait(Duration::from_secs(10)).unwrap());
    let mut captured = Vec::new();
    capture.receive(usize::MAX, |received| {
        captured.push((received.outgoing, received.frame[17]))
    });
    assert_eq!(captured, [(true, 2)]);
}

#[test]
fn a_fanout_group_distributes_frames_by_destination() {
    require(FOR_NETWORK);
    let lab = Lab::build(&Topology {
        ipv6: false,
        ..Topology::default()
    })
    .unwrap();
    let options = Options {
        fanout: Some(Fanout { group: 7, sockets: 3 }),
        ..Options::default()
    };
    let mut members: Vec<_> = (0..3)
        .map(|_| PacketSocket::open(&lab.devices, &lab.devices_end, &options).unwrap())
        .collect();
    let gateway = PacketSocket::open(&lab.gateway, &lab.gateway_devices_end, &Options::default()).unwrap();
    let mut batch = TxBatch::new(30);
    for index in 0..30 {
        batch.push(&frame(DeviceAddress::new(index).mac().0, [2; 6], index));
    }
    assert_eq!(gateway.send(&mut batch).unwrap(), 30);
    for (socket_index, member) in members.iter_mut().enumerate() {
        let mut indices = Vec::new();
        while indices.len() < 10 {
            assert!(member.wait(Duration::from_secs(10)).unwrap());
            member.receive(usize::MAX, |received| {
                indices.push(u32::from_be_bytes(received.frame[2..6].try_into().unwrap()));
            });
        }
        let expected: Vec<u32> = (0..30)
            .filter(|index| *index as usize % 3 == socket_index)
            .collect();
        assert_eq!(indices, expected);
    }
}

#[test]
fn napi_threads_are_found_pinned_and_accounted() {
    require(FOR_NETWORK);
    let lab = Lab::build(&Topology {
        queues: 2,
        ..Topology::default()
    })
    .unwrap();
    let threads = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name).unwrap();
    assert_eq!(threads.pids().len(), 2, "one per receive queue");
    threads.pin(&[0]).unwrap();
    for pid in threads.pids() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let allowed = status
            .lines()
            .find(|l| l.starts_with("Cpus_allowed_list:"))
            .unwrap();
        assert_eq!(allowed.split_whitespace().nth(1), Some("0"));
    }
    assert!(threads.pin(&[4_000]).is_err());
    let before = threads.cpu_time().unwrap();
    wait_until("the gateway's receive thread has used CPU time", || {
        echo_once(&lab, (DEVICE_HOST.v4, 0).into(), (SERVICE.v4, 0).into());
        threads.cpu_time().unwrap() > before
    });
}

#[test]
fn too_many_neighbors_are_refused() {
    require(FOR_NETWORK);
    let topology = Topology {
        permanent_neighbors: 70_000,
        ..Topology::default()
    };
    assert!(matches!(
        Lab::build(&topology),
        Err(LabError::TooManyNeighbors(70_000))
    ));
}

/// A later test runs this function in a child process. The function builds a lab with threads, prints the lab's names,
/// and waits until the later test kills the process.
#[test]
#[ignore = "runs only as a child process of another test"]
fn child_that_holds_a_lab() {
    let lab = Lab::build(&Topology::default()).unwrap();
    NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name).unwrap();
    let _worker = lab.gateway.spawn("worker", std::thread::park).unwrap();
    let _socket = PacketSocket::open(&lab.devices, &lab.devices_end, &Options::default()).unwrap();
    println!(
        "\nHOLDING {} {} {} {} {}",
        lab.service.path(),
        lab.service_end.name,
        lab.gateway_devices_end.name,
        lab.devices.inode().unwrap(),
        lab.gateway.inode().unwrap(),
    );
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// Inodes of the network namespaces of all threads, and of all open files of all processes.
fn namespaces_in_use() -> Vec<u64> {
    let list = |path: String| {
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
    };
    let processes = list("/proc".to_owned()).filter(|path| path.join("ns/net").exists());
    processes
        .flat_map(|process| {
            let threads = list(process.join("task").display().to_string()).map(|task| task.join("ns/net"));
            threads.chain(list(process.join("fd").display().to_string()))
        })
        .filter_map(|path| Some(fs::metadata(path).ok()?.ino()))
        .collect()
}

#[test]
fn a_killed_process_leaves_no_namespace_interface_or_thread_behind() {
    require(FOR_NETWORK);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "private_network::child_that_holds_a_lab",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines
        .find_map(|line| Some(line.unwrap().strip_prefix("HOLDING ")?.to_owned()))
        .expect("the child builds a lab");
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [
        service_path,
        service_end,
        gateway_end,
        devices_inode,
        gateway_inode,
    ] = fields[..]
    else {
        panic!("unexpected line {line}");
    };
    let inodes: [u64; 2] = [devices_inode.parse().unwrap(), gateway_inode.parse().unwrap()];

    // `service` keeps the service's namespace alive. The interface pair to the service therefore disappears only when the
    // kernel removes the gateway's namespace.
    let service = NetNs::from_fd(File::open(service_path).unwrap().into());
    let service_end_exists = || {
        let list = service
            .run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap())
            .unwrap();
        list.contains(service_end)
    };
    assert!(service_end_exists());
    assert!(!NapiThreads::find(gateway_end).pids().is_empty());
    assert!(inodes.iter().all(|inode| namespaces_in_use().contains(inode)));

    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();

    wait_until("the kernel has removed the gateway's namespace", || {
        !service_end_exists()
    });
    wait_until("the interface's kernel threads have ended", || {
        NapiThreads::find(gateway_end).pids().is_empty()
    });
    let in_use = namespaces_in_use();
    assert!(inodes.iter().all(|inode| !in_use.contains(inode)));
}

#[test]
fn without_privileges_the_error_names_the_capability() {
    // Drops the capabilities of a separate thread only.
    std::thread::spawn(|| {
        #[repr(C)]
        struct Header(u32, i32);
        let header = Header(0x2008_0522, 0);
        let empty_sets = [0u32; 6];
        // SAFETY: capset(2) version 3 takes a header and two sets of three words; both live through the call.
        let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, empty_sets.as_ptr()) };
        assert_eq!(result, 0);
        let error = Lab::build(&Topology::default()).unwrap_err().to_string();
        assert!(
            error.contains("CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW missing"),
            "{error}"
        );
        assert!(capability::require(FOR_NETWORK).is_err());
    })
    .join()
    .unwrap();
}
