//! Which broker is offered which slots.

use super::link::{Link, State};
use super::{Action, BrokerMode, Manager};
use crate::emqp::Command;
use crate::ids::{NS_PER_MS, Now};

/// How often the shares of several brokers are looked at, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// What a broker did with its slots since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Demand {
    /// Most slots in use at a time.
    used: usize,
    /// It used all it had.
    hungry: bool,
}

/// Divides slots among brokers: one for each, beginning with that at `turn`; who does not need all
/// of its own keeps what it used and one more; the rest goes in equal parts to those who did, or
/// to all if nobody did.
fn divide(slots: usize, demands: &[Demand], turn: usize) -> Vec<usize> {
    let count = demands.len();
    let order = || (0..count).map(|n| (n + turn) % count.max(1));
    let mut shares = vec![0; count];
    let mut left = slots;
    for at in order().take(slots) {
        shares[at] = 1;
        left -= 1;
    }
    for at in order().filter(|at| !demands[*at].hungry) {
        let more = (demands[at].used + 1).saturating_sub(shares[at]).min(left);
        shares[at] += more;
        left -= more;
    }
    let nobody = demands.iter().all(|demand| !demand.hungry);
    let takers: Vec<usize> = order().filter(|at| nobody || demands[*at].hungry).collect();
    while left > 0 && !takers.is_empty() {
        // The poorest first.
        let poorest = takers.iter().copied().min_by_key(|at| shares[*at]);
        let Some(at) = poorest else { break };
        shares[at] += 1;
        left -= 1;
    }
    shares
}

impl Manager {
    /// The slots a broker is told of, or gets READYs for if it cannot be told.
    pub(super) fn slots_for(&self, broker: usize) -> usize {
        match self.config.mode {
            BrokerMode::Failover => self.ceiling,
            BrokerMode::All => self.links[broker].share.min(self.ceiling),
        }
    }

    /// True if there is something to divide.
    pub(super) fn shares_are_watched(&self) -> bool {
        self.config.mode == BrokerMode::All && !self.closing && self.sharing().count() > 1
    }

    /// The brokers whose shares can be changed.
    fn sharing(&self) -> impl Iterator<Item = usize> + '_ {
        let part = |broker: &usize| {
            let link = &self.links[*broker];
            link.ours && link.takes_part()
        };
        (0..self.links.len()).filter(part)
    }

    /// Equal shares for all brokers that take part, if these or the slots are others now.
    ///
    /// What a broker that is not ours was offered cannot be taken back without losing a job that
    /// is on its way: it never gets more than its equal part among all brokers there are.
    pub(super) fn assign_shares(&mut self) {
        let part: Vec<bool> = self.links.iter().map(Link::takes_part).collect();
        let own: usize = self.sharing().map(|broker| self.links[broker].share).sum();
        if self.part == part && own + self.foreign_shares() <= self.ceiling {
            return;
        }
        self.part = part;
        let even = Demand {
            used: 0,
            hungry: true,
        };
        let fair = divide(self.config.slots, &vec![even; self.links.len()], 0);
        for (link, fair) in self.links.iter_mut().zip(fair) {
            if !link.ours {
                link.share = fair;
            }
        }
        let demands = vec![even; self.sharing().count()];
        self.share_out(&demands);
    }

    /// Slots of the brokers whose shares cannot be changed.
    pub(super) fn foreign_shares(&self) -> usize {
        let foreign = self
            .links
            .iter()
            .filter(|link| !link.ours && link.takes_part());
        foreign.map(|link| link.share).sum()
    }

    fn share_out(&mut self, demands: &[Demand]) {
        let left = self.ceiling.saturating_sub(self.foreign_shares());
        let shares = divide(left, demands, self.turn);
        for (broker, share) in self.sharing().collect::<Vec<_>>().into_iter().zip(shares) {
            self.links[broker].share = share;
        }
    }

    /// After a broker has come or gone.
    pub(super) fn redistribute(&mut self, now: Now) {
        if self.config.mode == BrokerMode::All && !self.closing {
            self.assign_shares();
            self.tell_shares(now);
        }
    }

    /// Looks at who used its slots, and gives to those in need what others left unused.
    pub(super) fn look_at_shares(&mut self, now: Now) {
        self.shares_ns = now.mono_ns + LOOK_MS * NS_PER_MS;
        let demand = |link: &Link| {
            let used = link.share.saturating_sub(link.offered_min);
            let hungry = link.offered_min == 0;
            Demand { used, hungry }
        };
        let demands: Vec<Demand> = self.sharing().map(|n| demand(&self.links[n])).collect();
        for link in &mut self.links {
            link.offered_min = link.offered;
        }
        let too_few = self.sharing().any(|n| self.links[n].share == 0);
        let some = demands.iter().any(|demand| demand.hungry);
        let others = demands.iter().any(|demand| !demand.hungry);
        let uneven = some && others;
        if !(too_few || uneven) {
            return;
        }
        if too_few {
            self.turn = (self.turn + 1) % demands.len();
        }
        self.share_out(&demands);
        self.tell_shares(now);
    }

    /// Tells brokers of ours whose share is another one now. Others give slots back by getting no
    /// further READYs.
    fn tell_shares(&mut self, now: Now) {
        for broker in 0..self.links.len() {
            let link = &self.links[broker];
            let registered = matches!(link.state, State::Registered);
            if registered && link.ours && self.slots_for(broker) != link.told {
                self.inform(broker, now);
            }
        }
    }

    /// The capacity has shrunk: brokers are told, so that jobs do not wait for nobody.
    pub(super) fn take_back_offers(&mut self, now: Now) {
        self.part.clear();
        self.assign_shares();
        for broker in 0..self.links.len() {
            let link = &self.links[broker];
            let registered = matches!(link.state, State::Registered);
            if registered && link.ours && link.told > self.slots_for(broker) {
                self.inform(broker, now);
            }
        }
    }

    /// Offers every free slot.
    pub(super) fn offer_free_slots(&mut self, now: Now) {
        if self.closing {
            return;
        }
        let mut free = self.capacity.saturating_sub(self.used());
        while free > 0 {
            let Some(broker) = self.next_taker() else {
                break;
            };
            let wire = self.plain(Command::Ready);
            self.act(Action::Send { broker, wire });
            self.links[broker].offered += 1;
            free -= 1;
        }
        if free > 0 {
            // Told of fewer when the capacity was smaller.
            for broker in 0..self.links.len() {
                let link = &self.links[broker];
                let registered = matches!(link.state, State::Registered);
                if registered && link.ours && link.told < self.slots_for(broker) {
                    self.inform(broker, now);
                }
            }
        }
    }

    /// The broker with the fewest offers among those with room for another one.
    fn next_taker(&self) -> Option<usize> {
        let room = |broker: &usize| {
            let link = &self.links[*broker];
            let most = if link.ours {
                link.told
            } else {
                self.slots_for(*broker)
            };
            matches!(link.state, State::Registered) && link.in_flight() + link.offered < most
        };
        let brokers = (0..self.links.len()).filter(room);
        brokers.min_by_key(|broker| self.links[*broker].offered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(used: usize, hungry: bool) -> Demand {
        Demand { used, hungry }
    }

    #[test]
    fn slots_go_where_they_are_used() {
        let (idle, hungry) = (demand(0, false), demand(2, true));
        assert_eq!(divide(4, &[hungry, hungry], 0), [2, 2]);
        assert_eq!(divide(4, &[idle, idle], 0), [2, 2]);
        assert_eq!(divide(4, &[hungry, idle], 0), [3, 1]);
        assert_eq!(divide(5, &[hungry, demand(1, false)], 0), [3, 2]);
        assert_eq!(divide(5, &[hungry, hungry, idle], 0), [2, 2, 1]);
        // Fewer slots than brokers: they go round.
        assert_eq!(divide(1, &[idle, idle], 0), [1, 0]);
        assert_eq!(divide(1, &[idle, idle], 1), [0, 1]);
        assert_eq!(divide(0, &[idle, hungry], 0), [0, 0]);
    }

    proptest! {
        #[test]
        fn every_slot_is_given_once(
            slots in 0_usize..40,
            demands in prop::collection::vec((0_usize..20, any::<bool>()), 1..6),
            turn in 0_usize..6,
        ) {
            let demands: Vec<_> = demands.into_iter().map(|(u, h)| demand(u, h)).collect();
            let turn = turn % demands.len();
            let shares = divide(slots, &demands, turn);
            prop_assert_eq!(shares.iter().sum::<usize>(), slots);
            let served = shares.iter().filter(|share| **share > 0).count();
            prop_assert_eq!(served, slots.min(demands.len()));
        }
    }
}
