//! What a broker must not do, as the generator notes it: the end of a measurement, or a line in
//! the account of a soak.

use super::jobs::{Ended, Violation};
use crate::failure::Failure;
use serde::Serialize;

/// Incidents beyond this number are counted and not kept.
const KEPT_MAX: usize = 100;

/// Something that went wrong.
#[derive(Debug, Clone)]
pub(crate) struct Incident {
    /// None: the run cannot go on.
    pub(crate) violation: Option<Violation>,
    pub(crate) msgid: String,
    line: String,
    /// The job that ended with it.
    pub(crate) ended: Option<Ended>,
}

impl Incident {
    /// Of one job.
    pub(crate) fn job(violation: Violation, msgid: &[u8], label: &str, what: &str) -> Self {
        let msgid = msgid.escape_ascii().to_string();
        Incident {
            violation: Some(violation),
            line: format!("{label} sent {what}: {msgid}"),
            msgid,
            ended: None,
        }
    }

    /// A job was refused.
    pub(crate) fn rejected(ended: Ended, msgid: &[u8], label: &str, reason: &[u8]) -> Self {
        let advice = match reason {
            b"queue-full" => {
                "the queue has as many waiting jobs as the setting hwm allows: fewer --outstanding, \
                 or more --workers"
            }
            b"too-many-queues" => "fewer --queues, or a higher setting max_queues",
            b"memory-full" => "the broker is at its max_memory: fewer --outstanding",
            b"draining" => "the broker is ending; start it again",
            b"too-large" => "a smaller --payload",
            b"unsupported" | b"not-durable" => "this broker does not keep --guarantee-share",
            _ => "docs/protocol.md lists the reasons",
        };
        let msgid = msgid.escape_ascii().to_string();
        let line = format!(
            "{label} rejects a job: {} ({msgid}); {advice}",
            reason.escape_ascii()
        );
        Incident {
            violation: Some(Violation::Rejected),
            msgid,
            line,
            ended: Some(ended),
        }
    }

    /// Of the connection or the whole run.
    pub(crate) fn fatal(line: String) -> Self {
        Incident {
            violation: None,
            msgid: String::new(),
            line,
            ended: None,
        }
    }

    pub(crate) fn into_failure(self) -> Failure {
        Failure::run(self.line)
    }
}

/// One kept incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Noted {
    pub(crate) violation: Violation,
    pub(crate) msgid: String,
    pub(crate) text: String,
}

/// Incidents of a run that goes on in spite of them: all counted, the first ones kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Incidents {
    counts: [u64; Violation::ALL.len()],
    pub(crate) noted: Vec<Noted>,
}

impl Incidents {
    /// Notes `incident`, unless the run cannot go on with it.
    pub(crate) fn note(&mut self, incident: Incident) -> Result<(), Failure> {
        let Some(violation) = incident.violation else {
            return Err(incident.into_failure());
        };
        self.counts[violation as usize] += 1;
        if self.noted.len() < KEPT_MAX {
            self.noted.push(Noted {
                violation,
                msgid: incident.msgid,
                text: incident.line,
            });
        }
        Ok(())
    }

    pub(crate) fn count(&self, violation: Violation) -> u64 {
        self.counts[violation as usize]
    }

    /// Adds those of another thread.
    pub(crate) fn add(&mut self, other: &Incidents) {
        for (own, other) in self.counts.iter_mut().zip(other.counts) {
            *own += other;
        }
        let room = KEPT_MAX - self.noted.len();
        self.noted.extend(other.noted.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_kept_with_their_msgid() {
        let mut incidents = Incidents::default();
        for number in 0..2 * KEPT_MAX {
            let msgid = format!("id-{number}");
            let incident = Incident::job(Violation::Unknown, msgid.as_bytes(), "broker", "it");
            incidents.note(incident).unwrap();
        }
        let mut all = Incidents::default();
        all.add(&incidents);
        all.add(&incidents);
        assert_eq!(all.count(Violation::Unknown), 4 * KEPT_MAX as u64);
        assert_eq!(all.count(Violation::Lost), 0);
        assert_eq!(
            (all.noted.len(), all.noted[3].msgid.as_str()),
            (KEPT_MAX, "id-3")
        );
    }

    #[test]
    fn what_concerns_no_job_ends_the_run() {
        let failure = Incidents::default().note(Incident::fatal("gone".to_owned()));
        assert_eq!(failure.unwrap_err().to_string(), "gone");
    }
}
