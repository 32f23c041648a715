//! A malicious server with a controller's certificate: its responses do not control the terminal, and commands do not wait
//! forever.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use linewarden_tls::{Identity, ServerTls};
use rustls::{ServerConnection, StreamOwned};

use super::controller::{CommandOutput, TestController};

/// Starts a server that sends the responses in order, one per request, and then repeats the last response. Returns the port and
/// a counter of the requests.
fn serve(controller: &TestController, responses: Vec<String>) -> (u16, Arc<AtomicUsize>) {
    let read = |name: &str| std::fs::read(controller.path(name)).unwrap();
    let identity = Identity::from_pem(&read("ctl.pem"), &read("ctl.key")).unwrap();
    let tls = ServerTls::new(identity, None).unwrap();
    let tls = Arc::new(tls.to_rustls(&[&b"http/1.1"[..]]).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let request_count = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&request_count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&tls)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(bytes) if bytes > 0 => request.extend_from_slice(&buffer[..bytes]),
                    _ => break,
                }
            }
            let number = count.fetch_add(1, SeqCst).min(responses.len() - 1);
            let _ = stream.write_all(responses[number].as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    (port, request_count)
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

/// Runs a command of `linewarden` with this server.
fn run_against(controller: &TestController, port: u16, arguments: &str) -> CommandOutput {
    controller.run(&format!(
        "linewarden {arguments} --server https://127.0.0.1:{port} --server-ca pki/ca.pem --token-file vic.token"
    ))
}

/// A list of devices with control characters in its texts.
const HOSTILE_LIST: &str = r#"{"items":[{"id":"00000000000000d1","name":"\u001b[2J\u202edlrow","mode":"pool","suite":1,"status":"active",
    "reason":null,"since_s":null,"enrolled_at_s":0,"first_idx":0,"rows_total":1,"idx_floor":0,"rows_left":1,"epoch":0,"revision":1,
    "puf_profile":"\u0007"}],"next":null,"damaged_records":0}"#;

#[test]
fn control_characters_in_responses_are_escaped() {
    let controller = TestController::new();
    let (port, _) = serve(&controller, vec![response("200 OK", "", HOSTILE_LIST)]);
    let text = run_against(&controller, port, "device list").ok();
    assert!(text.contains("\\u{1b}[2J\\u{202e}dlrow"), "{text:?}");
    assert!(
        !text.contains('\u{1b}') && !text.contains('\u{202e}') && !text.contains('\u{7}'),
        "{text:?}"
    );
    let body = r#"{"error":{"code":"invalid","message":"\u001b]0;owned\u0007","field":"\u001b[31m"}}"#;
    let (port, _) = serve(&controller, vec![response("422 Unprocessable Entity", "", body)]);
    let errors = run_against(&controller, port, "device list").refused(2);
    assert!(
        errors.contains("\\u{1b}]0;owned") && !errors.contains("\u{1b}]0"),
        "{errors:?}"
    );
}

#[test]
fn requests_to_a_busy_controller_are_retried_after_the_requested_delay() {
    let controller = TestController::new();
    let body = r#"{"error":{"code":"rate_limited","message":"too many requests; retry later"}}"#;
    let limited = |seconds: u32| {
        response(
            "429 Too Many Requests",
            &format!("Retry-After: {seconds}\r\n"),
            body,
        )
    };
    let (port, request_count) = serve(
        &controller,
        vec![limited(1), response("200 OK", "", HOSTILE_LIST)],
    );
    run_against(&controller, port, "device list").ok();
    assert_eq!(request_count.load(SeqCst), 2);
    // A command does not wait for an hour.
    let (port, request_count) = serve(&controller, vec![limited(3_600)]);
    let errors = run_against(&controller, port, "device list").refused(1);
    assert!(errors.contains("retry in 3600 s"), "{errors}");
    assert_eq!(request_count.load(SeqCst), 1);
    let unavailable_response = r#"{"error":{"code":"unavailable","message":"no response within 30 s"}}"#;
    let unavailable_response = response(
        "503 Service Unavailable",
        "Retry-After: 1\r\n",
        unavailable_response,
    );
    let (port, request_count) = serve(
        &controller,
        vec![unavailable_response.clone(), response("200 OK", "", HOSTILE_LIST)],
    );
    run_against(&controller, port, "device list").ok();
    assert_eq!(request_count.load(SeqCst), 2);
    let (port, _) = serve(&controller, vec![unavailable_response]);
    let errors = run_against(&controller, port, "device list --retry-for 0").refused(1);
    assert!(errors.contains("no response within 30 s"), "{errors}");
}

#[test]
fn older_controllers_and_other_servers_are_distinguished() {
    let controller = TestController::new();
    let body = r#"{"error":{"code":"unknown_path","message":"there is no such path"}}"#;
    let (port, _) = serve(&controller, vec![response("404 Not Found", "", body)]);
    let errors = run_against(&controller, port, "attest group list").refused(1);
    assert!(
        errors.contains("does not support /api/v1/groups") && errors.contains("upgrade"),
        "{errors}"
    );
    for other_response in [
        response("200 OK", "", "<html>"),
        response("404 Not Found", "", "nginx"),
        response("302 Found", "Location: https://127.0.0.1:1/\r\n", ""),
        response("200 OK", "", "{\"items\":7}"),
    ] {
        let (port, request_count) = serve(&controller, vec![other_response]);
        let errors = run_against(&controller, port, "device list").refused(1);
        assert!(errors.contains("invalid response from"), "{errors}");
        assert_eq!(request_count.load(SeqCst), 1, "a retry would not help");
    }
}

/// The command reconnects after the end of a stream, and ends when the server refuses access.
#[test]
fn events_of_a_malicious_server_are_escaped() {
    let controller = TestController::new();
    let event = |id: u64, detail: &str| {
        format!(
            "event: revoked\nid: {id}\ndata: {{\"id\":{id},\"at_ms\":0,\"kind\":\"revoked\",\"gateway\":null,\"device\":null,\
             \"detail\":\"{detail}\",\"by\":null,\"reason\":null}}\n\n"
        )
    };
    let forbidden_body = r#"{"error":{"code":"forbidden","message":"over"}}"#;
    let stream = |body: &str| response("200 OK", "Content-Type: text/event-stream\r\n", body);
    let responses = vec![
        stream(&format!(
            ": alive\n\nevent: status\ndata: {{}}\n\n{}",
            event(4, "\\u001b[2Jfirst")
        )),
        stream(&event(5, "second")),
        response("403 Forbidden", "", forbidden_body),
    ];
    let (port, request_count) = serve(&controller, responses);
    let output = run_against(&controller, port, "event trace --after 3");
    assert_eq!(output.code, 3, "{}", output.err);
    assert!(
        output.out.contains("\\u{1b}[2Jfirst") && !output.out.contains('\u{1b}'),
        "{:?}",
        output.out
    );
    assert!(output.out.contains("second"), "{}", output.out);
    assert_eq!((request_count.load(SeqCst), output.out.lines().count()), (3, 2));
}
