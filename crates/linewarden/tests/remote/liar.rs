//! Whoever answers in a controller's place, with its certificate: nothing that it says steers a terminal, or is waited for without end.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use linewarden_tls::{Identity, ServerTls};
use rustls::{ServerConnection, StreamOwned};

use crate::office::Office;

/// Answers one question after the other; the last answer for ever. How many were asked.
fn lie(office: &Office, answers: Vec<String>) -> (u16, Arc<AtomicUsize>) {
    let read = |name: &str| std::fs::read(office.path(name)).unwrap();
    let identity = Identity::from_pem(&read("ctl.pem"), &read("ctl.key")).unwrap();
    let tls = ServerTls::new(identity, None).unwrap();
    let tls = Arc::new(tls.to_rustls(&[&b"http/1.1"[..]]).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&tls)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut said = Vec::new();
            let mut buffer = [0; 4096];
            while !said.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(bytes) if bytes > 0 => said.extend_from_slice(&buffer[..bytes]),
                    _ => break,
                }
            }
            let number = count.fetch_add(1, SeqCst).min(answers.len() - 1);
            let _ = stream.write_all(answers[number].as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    (port, asked)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

fn ask(office: &Office, port: u16, words: &str) -> crate::office::Said {
    office.run(&format!(
        "{words} --server https://127.0.0.1:{port} --server-ca pki/ca.pem --token-file vic.token"
    ))
}

const HOSTILE: &str = r#"{"items":[{"id":"00000000000000d1","name":"\u001b[2J\u202edlrow","mode":"pool","suite":1,"status":"active",
    "reason":null,"since_s":null,"enrolled_at_s":0,"first_idx":0,"rows_total":1,"idx_floor":0,"rows_left":1,"epoch":0,"revision":1,
    "puf_profile":"\u0007"}],"next":null}"#;

#[test]
fn hostile_words_are_shown_and_never_run() {
    let office = Office::new();
    let (port, _) = lie(&office, vec![answer("200 OK", "", HOSTILE)]);
    let shown = ask(&office, port, "device list").ok();
    assert!(shown.contains("\\u{1b}[2J\\u{202e}dlrow"), "{shown:?}");
    assert!(
        !shown.contains('\u{1b}') && !shown.contains('\u{202e}') && !shown.contains('\u{7}'),
        "{shown:?}"
    );
    let body = r#"{"error":{"code":"invalid","message":"\u001b]0;owned\u0007","field":"\u001b[31m"}}"#;
    let (port, _) = lie(&office, vec![answer("422 Unprocessable Entity", "", body)]);
    let said = ask(&office, port, "device list").refused(2);
    assert!(
        said.contains("\\u{1b}]0;owned") && !said.contains("\u{1b}]0"),
        "{said:?}"
    );
}

#[test]
fn who_is_too_busy_is_asked_again_when_it_says() {
    let office = Office::new();
    let busy = r#"{"error":{"code":"rate_limited","message":"too many questions; ask again later"}}"#;
    let limited = |seconds: u32| {
        answer(
            "429 Too Many Requests",
            &format!("Retry-After: {seconds}\r\n"),
            busy,
        )
    };
    let (port, asked) = lie(&office, vec![limited(1), answer("200 OK", "", HOSTILE)]);
    ask(&office, port, "device list").ok();
    assert_eq!(asked.load(SeqCst), 2);
    // For an hour nobody waits.
    let (port, asked) = lie(&office, vec![limited(3_600)]);
    let said = ask(&office, port, "device list").refused(1);
    assert!(said.contains("no more questions for 3600 s"), "{said}");
    assert_eq!(asked.load(SeqCst), 1);
    let away = r#"{"error":{"code":"unavailable","message":"no answer within 30 s"}}"#;
    let away = answer("503 Service Unavailable", "Retry-After: 1\r\n", away);
    let (port, asked) = lie(&office, vec![away.clone(), answer("200 OK", "", HOSTILE)]);
    ask(&office, port, "device list").ok();
    assert_eq!(asked.load(SeqCst), 2);
    let (port, _) = lie(&office, vec![away]);
    let said = ask(&office, port, "device list --patience 0").refused(1);
    assert!(said.contains("no answer within 30 s"), "{said}");
}

#[test]
fn who_is_older_or_no_controller_is_told_apart() {
    let office = Office::new();
    let unknown = r#"{"error":{"code":"unknown_path","message":"there is no such path"}}"#;
    let (port, _) = lie(&office, vec![answer("404 Not Found", "", unknown)]);
    let said = ask(&office, port, "policy list").refused(1);
    assert!(
        said.contains("does not know /api/v1/policies") && said.contains("older"),
        "{said}"
    );
    for other in [
        answer("200 OK", "", "<html>"),
        answer("404 Not Found", "", "nginx"),
        answer("302 Found", "Location: https://127.0.0.1:1/\r\n", ""),
        answer("200 OK", "", "{\"items\":7}"),
    ] {
        let (port, asked) = lie(&office, vec![other]);
        let said = ask(&office, port, "device list").refused(1);
        assert!(said.contains("is no controller"), "{said}");
        assert_eq!(asked.load(SeqCst), 1, "it is no good to ask again");
    }
}

/// A stream that nobody ends is nobody's memory, and one that says nothing of worth nobody's loop without end.
#[test]
fn events_of_a_liar_are_shown_as_they_are() {
    let office = Office::new();
    let event = |id: u64, detail: &str| {
        format!(
            "event: revoked\nid: {id}\ndata: {{\"id\":{id},\"at_ms\":0,\"kind\":\"revoked\",\"gateway\":null,\"device\":null,\
             \"detail\":\"{detail}\",\"by\":null,\"reason\":null}}\n\n"
        )
    };
    let refused = r#"{"error":{"code":"forbidden","message":"over"}}"#;
    let stream = |body: &str| answer("200 OK", "Content-Type: text/event-stream\r\n", body);
    let answers = vec![
        stream(&format!(
            ": alive\n\nevent: status\ndata: {{}}\n\n{}",
            event(4, "\\u001b[2Jfirst")
        )),
        stream(&event(5, "second")),
        answer("403 Forbidden", "", refused),
    ];
    let (port, asked) = lie(&office, answers);
    let said = ask(&office, port, "events --follow --after 3");
    assert_eq!(said.code, 3, "{}", said.err);
    assert!(
        said.out.contains("\\u{1b}[2Jfirst") && !said.out.contains('\u{1b}'),
        "{:?}",
        said.out
    );
    assert!(said.out.contains("second"), "{}", said.out);
    assert_eq!((asked.load(SeqCst), said.out.lines().count()), (3, 2));
}
