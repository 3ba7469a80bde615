//! TLS: certificates of the server and of clients.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};
use tokio_rustls::server::TlsStream;

use crate::options::{ServerOptions, TlsClients};

/// Longest time that a client may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts connections with TLS.
#[derive(Clone)]
pub(crate) struct TlsAcceptor {
    acceptor: tokio_rustls::TlsAcceptor,
}

impl std::fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}

fn wrong(what: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot use the {what} {}: {error}", path.display())
}

/// Reads the certificates of a file.
fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(|certificates| certificates.collect());
    let found = found.map_err(|error| wrong(what, path, &error))?;
    if found.is_empty() {
        return Err(wrong(what, path, &"the file has no certificate"));
    }
    Ok(found)
}

impl TlsAcceptor {
    /// Reads the files that the options name.
    ///
    /// # Errors
    /// A text that names the file or the parameter.
    pub(crate) fn new(options: &ServerOptions) -> Result<TlsAcceptor, String> {
        let needs = |parameter: &str| format!("TLS needs the parameter {parameter}");
        let certificate = options.tls_cert_file.as_ref();
        let certificate = certificate.ok_or_else(|| needs("tls-cert-file"))?;
        let key = options.tls_key_file.as_ref();
        let key = key.ok_or_else(|| needs("tls-key-file"))?;
        let chain = certificates("certificate", certificate)?;
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("key", key, &error))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot use TLS: {error}"))?;
        let builder = if options.tls_auth_clients == TlsClients::No {
            builder.with_no_client_auth()
        } else {
            let authorities = options.tls_ca_cert_file.as_ref();
            let authorities = authorities.ok_or_else(|| needs("tls-ca-cert-file"))?;
            let mut roots = RootCertStore::empty();
            for authority in certificates("certificates of authorities", authorities)? {
                roots
                    .add(authority)
                    .map_err(|error| wrong("certificates of authorities", authorities, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if options.tls_auth_clients == TlsClients::Optional {
                verifier.allow_unauthenticated()
            } else {
                verifier
            };
            let verifier = verifier
                .build()
                .map_err(|error| wrong("certificates of authorities", authorities, &error))?;
            builder.with_client_cert_verifier(verifier)
        };
        let config = builder
            .with_single_cert(chain, secret)
            .map_err(|error| wrong("certificate", certificate, &error))?;
        Ok(TlsAcceptor {
            acceptor: Arc::new(config).into(),
        })
    }

    /// Waits for the handshake; `None` if it fails or takes too long.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Option<TlsStream<S>> {
        let handshake = self.acceptor.accept(stream);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }
}
