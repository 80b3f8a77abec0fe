//! An answer of a defective kubelet that is small on the wire and large in memory, against the started binary.

use crate::support::agent;
use std::convert::Infallible;

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

/// Two bytes each: fifteen million pods without a name.
const ANSWER: usize = 30 << 20;

/// As the chart sets it.
fn memory_limit() -> u64 {
    let values = include_str!("../../deploy/helm/podmeter/values.yaml");
    let limits = values.split_once("  limits:\n").unwrap().1;
    let mebibytes = limits.trim_start().strip_prefix("memory: ").unwrap().split_once("Mi\n").unwrap().0;
    mebibytes.parse::<u64>().unwrap() << 20
}

fn empty_pods() -> Bytes {
    let mut message = vec![0];
    message.extend(u32::try_from(ANSWER).unwrap().to_be_bytes());
    message.extend([0x0a, 0x00].repeat(ANSWER / 2));
    message.into()
}

async fn serve(socket: tokio::net::UnixListener, answer: Bytes) {
    loop {
        let (stream, _) = socket.accept().await.unwrap();
        let answer = answer.clone();
        tokio::spawn(async move {
            let respond = service_fn(|_: Request<hyper::body::Incoming>| {
                let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
                let frames = [Frame::data(answer.clone()), Frame::trailers(trailers)];
                let body = StreamBody::new(tokio_stream::iter(frames.map(Ok::<_, Infallible>)));
                let response = Response::builder().header(CONTENT_TYPE, "application/grpc").body(body);
                std::future::ready(response)
            });
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), respond).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_thirty_megabytes_of_empty_pods_stays_below_the_memory_limit() {
    let root = tempfile::tempdir().unwrap();
    for name in ["pod-resources", "device-plugins"] {
        std::fs::create_dir(root.path().join(name)).unwrap();
    }
    let socket = tokio::net::UnixListener::bind(root.path().join("pod-resources/kubelet.sock")).unwrap();
    let kubelet = tokio::spawn(serve(socket, empty_pods()));
    let arguments = ["--hardware=none", "--device-plugin=off", "--refresh-interval=1s"];
    let running = agent::agent(root.path(), &arguments, &[]);
    let too_large: &[&str] = &["method=\"List\"", "code=\"too_large\""];
    running.until("two answers are refused", |page| {
        page.value("podmeter_podresources_errors_total", too_large) >= Some(2.0)
    });
    assert_eq!(running.metrics().value("podmeter_podresources_pods_truncated", &[]), Some(1.0));
    assert!(running.log().contains("has more entries than any node"), "{}", running.log());
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    assert!(peak < memory_limit(), "{peak} bytes");
    kubelet.abort();
}
