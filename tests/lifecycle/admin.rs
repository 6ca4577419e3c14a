//! The admin port: its pages, and clients that may not keep the probes out.

use crate::common::{NEVER, config, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Three times as many connections as the admin port has places. Each sends half of its request.
#[tokio::test]
async fn silent_connections_do_not_keep_the_probes_out() {
    let server = start(config()).await;
    let admin = server.addresses.admin.expect("admin is on");
    let mut silent = Vec::new();
    for _ in 0..3 * 64 {
        let mut connection = TcpStream::connect(admin).await.expect("a connection");
        // The oldest may be closed already.
        let _ = connection.write_all(b"GET /livez HTTP/1.1\r\nHo").await;
        silent.push(connection);
    }
    assert_eq!(server.get("/livez").await, (200, "ready\n".to_owned()));
    let count = async |reason: &str| server.series(&format!("croupier_rejected_total{{reason=\"{reason}\"}}")).await;
    assert!(count("admin_connections").await >= 128.0, "{}", count("admin_connections").await);
    assert_eq!(count("too_many_connections").await, 0.0, "max_connections is about workers");
    // The last connections did not block anybody, and end all the same.
    for mut connection in silent {
        let end = tokio::time::timeout(NEVER, connection.read(&mut [0; 64])).await.expect("it is closed");
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    assert_eq!(server.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn an_unknown_page_says_which_there_are() {
    let server = start(config()).await;
    let (status, body) = server.get("/nothing").await;
    assert_eq!(status, 404);
    assert!(body.contains("/metrics") && body.contains("/readyz"), "{body}");
}

#[tokio::test]
async fn who_measures_the_admin_port_is_told() {
    use croupier::bench::{Address, BenchArgs, run};
    let server = start(config()).await;
    let admin = server.addresses.admin.expect("admin is on");
    let args = BenchArgs { addr: Some(Address::Tcp(admin.to_string())), ..BenchArgs::default() };
    let said = run(args).await.expect_err("there is no gRPC").to_string();
    assert!(said.ends_with("the server does not speak gRPC there: is this the admin port?"), "{said}");
}
