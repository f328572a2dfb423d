//! The REQUESTs of a load, prebuilt: one for each queue and each combination of headers in use.

use super::jobs::End;
use crate::failure::{Failure, Result};
use crate::wire::{self, Template};
use crate::workload::Workload;

/// Prebuilt messages of one thread may take this much memory.
const TEMPLATE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What kind of broker answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Manners {
    /// Every REQUEST is accepted, results go to those who asked for them.
    Full,
    /// EventMQ 0.3.13: an acceptance only if a worker is free at that moment, no results.
    Original,
}

/// Templates of REQUESTs and how jobs are to end.
#[derive(Debug)]
pub(crate) struct Requests {
    queues: usize,
    /// By queue, then by headers: none, `reply-requested`, `guarantee`, both.
    templates: Vec<Option<Template>>,
    pub(crate) reply_share: f64,
    pub(crate) guarantee_share: f64,
    /// Results reach those who ask for them.
    pub(crate) results_come: bool,
    pub(crate) end_without_result: End,
}

const HEADERS: [&str; 4] = [
    "",
    "reply-requested",
    "guarantee",
    "reply-requested,guarantee",
];

impl Requests {
    pub(crate) fn new(workload: &Workload, manners: Manners) -> Result<Self> {
        let possible = |share: f64, wanted: bool| if wanted { share > 0.0 } else { share < 1.0 };
        let used: Vec<bool> = (0..HEADERS.len())
            .map(|which| {
                possible(workload.reply_share, which & 1 != 0)
                    && possible(workload.guarantee_share, which & 2 != 0)
            })
            .collect();
        let count = workload.queues * used.iter().filter(|used| **used).count();
        if count * (workload.payload + 256) > TEMPLATE_BYTES_MAX {
            return Err(Failure::usage(format!(
                "{} queues with a payload of {} bytes need more than {} MiB of prebuilt \
                 messages; choose fewer queues or a smaller payload",
                workload.queues,
                workload.payload,
                TEMPLATE_BYTES_MAX >> 20
            )));
        }
        let mut templates = Vec::with_capacity(workload.queues * HEADERS.len());
        for queue in 0..workload.queues {
            let name = workload.queue_name(queue);
            for (headers, used) in HEADERS.iter().zip(&used) {
                templates.push(used.then(|| wire::request(&name, headers, workload.payload)));
            }
        }
        let end_without_result = match (manners, workload.workers) {
            (Manners::Full, 0) => End::Acceptance,
            _ => End::Worker,
        };
        Ok(Requests {
            queues: workload.queues,
            templates,
            reply_share: workload.reply_share,
            guarantee_share: workload.guarantee_share,
            results_come: manners == Manners::Full,
            end_without_result,
        })
    }

    /// The REQUEST number `number` of a client.
    #[inline]
    pub(crate) fn template(&self, number: usize, with_result: bool, guaranteed: bool) -> &Template {
        let which = usize::from(with_result) | usize::from(guaranteed) << 1;
        let at = number % self.queues * HEADERS.len() + which;
        match &self.templates[at] {
            Some(template) => template,
            None => unreachable!("a share of 0 or 1 leaves only the other headers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Frames, Msgid, walk};
    use crate::workload::{Name, Overrides};

    fn headers(requests: &Requests, number: usize, result: bool, guaranteed: bool) -> String {
        let mut wire = Vec::new();
        let template = requests.template(number, result, guaranteed);
        template.push(&mut wire, Msgid::new(1).bytes());
        let mut frames = Frames::default();
        walk(&wire, &mut frames);
        let text = |index| String::from_utf8_lossy(frames.get(&wire, index)).into_owned();
        text(4) + " " + &text(5)
    }

    #[test]
    fn queues_take_turns_and_headers_are_those_asked_for() {
        let mut workload = Workload::new(Name::L1, &Overrides::default()).unwrap();
        (workload.queues, workload.reply_share) = (2, 0.5);
        workload.guarantee_share = 1.0;
        let requests = Requests::new(&workload, Manners::Full).unwrap();
        assert_eq!(headers(&requests, 0, false, true), "default-0 guarantee");
        assert_eq!(
            headers(&requests, 3, true, true),
            "default-1 reply-requested,guarantee"
        );
        assert_eq!(requests.templates.iter().flatten().count(), 4);
    }

    #[test]
    fn too_many_large_messages_are_refused() {
        let mut workload = Workload::new(Name::L1, &Overrides::default()).unwrap();
        (workload.queues, workload.payload) = (1_000, 1 << 20);
        let line = Requests::new(&workload, Manners::Full)
            .unwrap_err()
            .to_string();
        assert!(line.contains("fewer queues"), "{line}");
    }

    #[test]
    fn jobs_of_a_broker_without_results_end_with_their_worker() {
        let workload = Workload::new(Name::L1, &Overrides::default()).unwrap();
        let requests = Requests::new(&workload, Manners::Original).unwrap();
        assert!(!requests.results_come);
        assert_eq!(requests.end_without_result, End::Worker);
    }
}
