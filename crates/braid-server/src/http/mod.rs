//! Pages for people and monitoring: `/`, `/live`, `/health` and `/metrics`.
//!
//! They need no password: whoever reaches the address may read them. They tell numbers, no keys.

use std::convert::Infallible;
use std::fmt::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid::Health;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::shared::Shared;

/// Most connections at once; further ones wait.
const CONNECTIONS_MAX: usize = 64;

/// Longest time that a client may take for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The page with live figures. It loads nothing but `/live`.
const PAGE: &str = include_str!("page.html");

/// Serves the pages until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: a connection has to end first.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| {
                let response = answer(&shared, &request);
                async { Ok::<_, Infallible>(response) }
            });
            // A client that breaks the protocol loses its connection.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(16 << 10)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(place);
        });
    }
}

fn answer(shared: &Shared, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return respond(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "only GET\n".into(),
        );
    }
    match request.uri().path() {
        "/" => respond(StatusCode::OK, "text/html; charset=utf-8", PAGE.into()),
        "/live" => respond(StatusCode::OK, "application/json", live(shared)),
        "/metrics" => respond(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            metrics(shared),
        ),
        "/health" => {
            let (status, text) = health(shared);
            respond(status, "text/plain; charset=utf-8", text)
        }
        _ => respond(StatusCode::NOT_FOUND, "text/plain", "no such page\n".into()),
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'",
        ),
    );
    response
}

/// Returns 200 while writes are accepted, 503 otherwise, with the reason.
fn health(shared: &Shared) -> (StatusCode, String) {
    if shared.is_stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned());
    }
    match shared.keyspace.db.health() {
        Health::Good => (StatusCode::OK, "good\n".to_owned()),
        // Writes still succeed, and an operator should look.
        health @ (Health::CheckpointFailing { .. } | Health::ArchiveFailing { .. }) => {
            (StatusCode::OK, format!("{health:?}\n"))
        }
        health => (StatusCode::SERVICE_UNAVAILABLE, format!("{health:?}\n")),
    }
}

/// Returns the metrics of the database and of the server in the text format of Prometheus.
fn metrics(shared: &Shared) -> String {
    let mut out = shared.keyspace.db.stats().to_prometheus();
    let (counters, activities) = (&shared.counters, &shared.activities);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let clients = shared.clients().len() as u64;
    for (name, kind, help, value) in [
        (
            "commands_total",
            "counter",
            "Commands.",
            activities.sum(|activity| &activity.commands),
        ),
        (
            "connections_total",
            "counter",
            "Connections accepted.",
            count(&counters.connections),
        ),
        (
            "connections_rejected_total",
            "counter",
            "Connections refused.",
            count(&counters.rejected),
        ),
        (
            "keyspace_hits_total",
            "counter",
            "Reads that found a key.",
            activities.sum(|activity| &activity.hits),
        ),
        (
            "keyspace_misses_total",
            "counter",
            "Reads that found none.",
            activities.sum(|activity| &activity.misses),
        ),
        (
            "expired_keys_total",
            "counter",
            "Keys removed after their time.",
            count(&counters.expired),
        ),
        ("clients", "gauge", "Open connections.", clients),
        (
            "clients_blocked",
            "gauge",
            "Connections that wait for elements.",
            shared.waiters.len() as u64,
        ),
    ] {
        let _ = write!(
            out,
            "# HELP braid_server_{name} {help}\n# TYPE braid_server_{name} {kind}\nbraid_server_{name} {value}\n"
        );
    }
    activities.writes().write_prometheus(
        "braid_server_write_seconds",
        "Time from the execution of a write to its reply.",
        &mut out,
    );
    out
}

/// Returns the figures of the page.
fn live(shared: &Shared) -> String {
    let stats = shared.keyspace.db.stats();
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": stats.protocol.to_string(),
        "health": health(shared).1.trim_end(),
        "seconds": shared.started.elapsed().as_secs_f64(),
        "commands": shared.activities.sum(|activity| &activity.commands),
        "commits": stats.commits,
        "flushes": stats.log.flushes,
        "clients": shared.clients().len(),
        "blocked": shared.waiters.len(),
        "durable": stats.durable_seqno,
        "pool_bytes": stats.store.resident_pages * stats.store.page_size,
        "version_bytes": stats.old_version_bytes,
        "log_bytes": stats.log_bytes_to_recover,
        "write_counts": shared.activities.writes().counts(),
    })
    .to_string()
}
