//! Who verifies a draft: the device, the host with what kernels leave of the target rows, or the host with the whole rows.

use super::super::ask::{Asked, HostRows, LaunchLimits, NoKernel};
use super::super::machine::Machine;
use super::super::taken::Taken;
use super::super::{CudaBackend, filled};
use super::lists::{BegunDraft, together};
use super::verify;
use crate::backend::{RowJob, VerifyJob, VerifyResult};
use crate::sampling::listed::Listed;
use std::collections::BTreeSet;

impl<M: Machine> CudaBackend<M> {
    /// Verifies drafts: by lists if kernels can report what is left of all their rows, and otherwise by whole rows.
    pub(in super::super) fn verify_all(&mut self, jobs: &[VerifyJob<'_>]) -> Result<Vec<VerifyResult>, M::Error> {
        let by_lists = self.verify_by_lists(jobs)?;
        let rest = jobs.iter().zip(&by_lists).filter(|(_, result)| result.is_none()).map(|(job, _)| *job);
        let rest: Vec<VerifyJob<'_>> = rest.collect();
        Ok(filled(by_lists, self.verify_whole(&rest)?))
    }

    /// Results of the drafts whose rows kernels begin and of which few tokens are left; `None` for all others.
    fn verify_by_lists(&mut self, jobs: &[VerifyJob<'_>]) -> Result<Vec<Option<VerifyResult>>, M::Error> {
        let limits = self.launches.limits();
        let begun = jobs.iter().enumerate().filter_map(|(at, job)| BegunDraft::of(at, job, &limits));
        let begun: Vec<BegunDraft> = begun.collect();
        let (mut results, mut rest) = (jobs.iter().map(|_| None).collect::<Vec<_>>(), begun.as_slice());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(together(rest));
            rest = later;
            let asked: Vec<Asked<'_>> = now.iter().flat_map(|draft| draft.asked(&jobs[draft.at])).collect();
            let mut answers = self.launches.ask(&asked, || ())?.into_iter();
            let mut known: Vec<(&BegunDraft, Vec<Listed>)> = Vec::with_capacity(now.len());
            for draft in now {
                match draft.lists(&jobs[draft.at], &mut answers) {
                    Ok(lists) => known.push((draft, lists)),
                    Err(NoKernel::Contradiction) => results[draft.at] = Some(self.verify_doubted(&jobs[draft.at])?),
                    // Too many tokens are left.
                    Err(_) => {}
                }
            }
            let rows = known.iter().map(|(draft, lists)| draft.listed(&jobs[draft.at], lists));
            let rows: Vec<Vec<RowJob<'_>>> = rows.collect();
            let listed = known.iter().zip(&rows).map(|((draft, _), rows)| VerifyJob { rows, ..jobs[draft.at] });
            let listed: Vec<VerifyJob<'_>> = listed.collect();
            let mut verified = if listed.is_empty() { vec![] } else { self.other.verify(&listed) };
            self.rank_rejected(jobs, &known, &mut verified)?;
            known.iter().zip(verified).for_each(|((draft, _), result)| results[draft.at] = Some(result));
        }
        Ok(results)
    }

    /// Asks for the ranks of rejected draft tokens that the lists do not tell.
    fn rank_rejected(
        &mut self,
        jobs: &[VerifyJob<'_>],
        known: &[(&BegunDraft, Vec<Listed>)],
        verified: &mut [VerifyResult],
    ) -> Result<(), M::Error> {
        let (mut places, mut asked) = (Vec::new(), Vec::new());
        for (i, ((draft, lists), result)) in known.iter().zip(verified.iter()).enumerate() {
            let Ok(verified) = result else { continue };
            for unknown in draft.unknown_ranks(&jobs[draft.at], lists, verified) {
                places.push((i, unknown.trial));
                asked.push(unknown.asked);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let answers = self.launches.ask(&asked, || ())?;
        let mut doubted = BTreeSet::new();
        for ((i, trial), answer) in places.into_iter().zip(answers) {
            let rank = match answer.status() {
                Some(Ok(())) => answer.written.rank,
                // The worker has overwritten the row since. What its tokens were is not known any more.
                Some(Err(_)) => 0,
                None => {
                    doubted.insert(i);
                    0
                }
            };
            if let Ok(verified) = &mut verified[i] {
                verified.trials[trial].rejected_rank = Some(rank);
            }
        }
        for i in doubted {
            verified[i] = self.verify_doubted(&jobs[known[i].0.at])?;
        }
        Ok(())
    }

    /// Verifies a draft on the other backend, because a kernel contradicted itself about it.
    fn verify_doubted(&mut self, job: &VerifyJob<'_>) -> Result<VerifyResult, M::Error> {
        self.hand_over(NoKernel::Contradiction, job.rows.len());
        let verified = self.verify_fetched(std::slice::from_ref(job))?.pop();
        Ok(verified.expect("a backend gives a result for each job; this is a bug"))
    }

    /// Verifies drafts by whole rows, on the device, and those that the device cannot do on the other backend. Drafts that
    /// stay on the host are verified there during the device's first launch.
    fn verify_whole(&mut self, jobs: &[VerifyJob<'_>]) -> Result<Vec<VerifyResult>, M::Error> {
        let left: Vec<Option<NoKernel>> = jobs.iter().map(|job| self.left_here(job)).collect();
        let of = |is_here: bool| jobs.iter().zip(&left).filter(move |(_, left)| left.is_some() == is_here);
        let here: Vec<VerifyJob<'_>> = of(true).map(|(job, _)| *job).collect();
        let there: Vec<VerifyJob<'_>> = of(false).map(|(job, _)| *job).collect();
        for (job, reason) in jobs.iter().zip(&left).filter_map(|(job, left)| Some((job, (*left)?))) {
            self.hand_over(reason, job.rows.len());
        }
        let foreign = there.iter().flat_map(|job| job.rows).any(|row| row.logits.is_foreign());
        let (verified, others) =
            if foreign { self.verify_foreign(&there, &here)? } else { self.try_verify(&there, &here)? };
        let mut verified = verified.into_iter();
        Ok(filled(left.iter().map(|left| left.map_or_else(|| verified.next(), |_| None)).collect(), others))
    }

    /// The same as [`Self::try_verify`] for jobs with foreign rows, which are copied first: as many at a time as the
    /// device has room to hold.
    fn verify_foreign(
        &mut self,
        jobs: &[VerifyJob<'_>],
        here: &[VerifyJob<'_>],
    ) -> Result<(Vec<VerifyResult>, Vec<VerifyResult>), M::Error> {
        let (mut verified, mut of_here) = (Vec::with_capacity(jobs.len()), Vec::new());
        while verified.len() < jobs.len() {
            let rest = &jobs[verified.len()..];
            let launches = &mut self.launches;
            let now = &rest[..Taken::together(rest, launches.machine.held_bytes())];
            let taken = launches.settle().and_then(|()| Taken::of(launches, now))?;
            let rows = taken.rows(now);
            let now: Vec<_> = now.iter().zip(&rows).map(|(job, rows)| VerifyJob { rows, ..*job }).collect();
            let (found, beside) = self.try_verify(&now, if verified.is_empty() { here } else { &[] })?;
            verified.extend(found);
            of_here.extend(beside);
        }
        Ok((verified, of_here))
    }

    /// Why the other backend verifies a job, if that can be told from where and what its logits are. Only for jobs
    /// whose rows are all on the host.
    fn left_here(&self, job: &VerifyJob<'_>) -> Option<NoKernel> {
        let limits = self.launches.limits();
        let is_here = job.rows.iter().all(|row| row.logits.device_address().is_none());
        job.rows.iter().filter(|_| is_here).find_map(|row| limits.check_logits(row).err())
    }

    /// Results of `jobs`, verified on the device or, where it cannot, on the other backend; then results of `here`, all
    /// from the other backend.
    fn try_verify(
        &mut self,
        jobs: &[VerifyJob<'_>],
        here: &[VerifyJob<'_>],
    ) -> Result<(Vec<VerifyResult>, Vec<VerifyResult>), M::Error> {
        // It is decided already that the device takes these. Rows from the device may be copies on the host here, if it
        // had no room to hold them.
        let limits = LaunchLimits { host_rows: HostRows::Cuda, ..self.launches.limits() };
        let launches = &mut self.launches;
        let (mut of_here, other) = (None, &mut self.other);
        let mut beside =
            || _ = of_here.get_or_insert_with(|| if here.is_empty() { vec![] } else { other.verify(here) });
        let verified = verify(jobs, limits, &mut |asked| launches.ask(asked, &mut beside))?;
        beside();
        let of_here = of_here.unwrap_or_default();
        let mut rest = Vec::new();
        for (job, reason) in jobs.iter().zip(&verified).filter_map(|(job, v)| Some((job, v.as_ref().err()?))) {
            self.hand_over(*reason, job.rows.len());
            rest.push(*job);
        }
        let others = self.verify_fetched(&rest)?;
        Ok((filled(verified.into_iter().map(Result::ok).collect(), others), of_here))
    }

    /// Verifies drafts on the other backend, with their rows on the host.
    fn verify_fetched(&mut self, jobs: &[VerifyJob<'_>]) -> Result<Vec<VerifyResult>, M::Error> {
        let mut verified = Vec::with_capacity(jobs.len());
        while verified.len() < jobs.len() {
            let rest = &jobs[verified.len()..];
            let rows = self.launches.fetched(rest.iter().map(|job| job.rows))?;
            let here: Vec<_> = rest.iter().zip(&rows).map(|(job, rows)| VerifyJob { rows, ..*job }).collect();
            verified.extend(self.other.verify(&here));
        }
        Ok(verified)
    }
}
