//! The embedded DynamoDB behind HTTP, on a thread of its own.

use crate::Dynamo;

/// Serves the database from a thread of its own; says where.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn serve(dynamo: &Dynamo) -> String {
    serve_at(dynamo, "127.0.0.1:0").expect("a port is free")
}

/// Serves the database at `address` from a thread of its own. Returns the endpoint.
///
/// # Errors
/// If the address is not free.
pub fn serve_at(dynamo: &Dynamo, address: &str) -> std::io::Result<String> {
    let listener = std::net::TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let db = dynamo.db().clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime starts");
        runtime.block_on(async {
            let listener =
                tokio::net::TcpListener::from_std(listener).expect("the socket is asynchronous");
            dynoxide::server::serve_on(listener, db).await;
        });
    });
    Ok(format!("http://{address}"))
}
