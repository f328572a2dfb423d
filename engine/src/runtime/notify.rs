//! Telling systemd (`Type=notify`) how far the process is. Without `NOTIFY_SOCKET` nothing happens.
//!
//! The crate sd-notify speaks the protocol; it does not know sockets in the abstract namespace,
//! which systemd itself does not use for services.

use sd_notify::NotifyState;

/// The process serves its sockets.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload has begun; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no time for systemd"),
    }
}

/// The process is on its way out.
pub fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::time::Duration;

    /// Set in the process that notifies.
    const CHILD: &str = "EMQ_TEST_NOTIFIES";

    #[test]
    fn systemd_is_told_each_stage() {
        if std::env::var_os(CHILD).is_some() {
            ready("serving");
            reloading();
            ready("serving");
            stopping("draining");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "runtime::notify::tests::systemd_is_told_each_stage",
                "--exact",
            ])
            .env(CHILD, "1")
            .env("NOTIFY_SOCKET", &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let next = || {
            let mut bytes = [0; 512];
            let len = socket.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        assert_eq!(next(), "READY=1\nSTATUS=serving\n");
        let reloading = next();
        let time = reloading
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap();
        assert!(time.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(next(), "READY=1\nSTATUS=serving\n");
        assert_eq!(next(), "STOPPING=1\nSTATUS=draining\n");
    }
}
