//! How many jobs go into one call: as many as the kernel takes, and no more bytes than it
//! reads.

/// As many jobs as the kernel takes at once.
const CALL_JOBS: usize = 1_000;

/// Bytes of one call. The kernel reads 16 MiB, so that even one job beyond this fits.
pub const CALL_BYTES: usize = 8 * 1024 * 1024;

/// Splits `jobs`, in order, by what each of them takes.
pub fn in_calls(jobs: &[usize], size: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut calls: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0_usize;
    for job in jobs {
        let more = size(*job);
        match calls.last_mut() {
            Some(call) if call.len() < CALL_JOBS && bytes.saturating_add(more) <= CALL_BYTES => {
                call.push(*job);
                bytes += more;
            }
            Some(_) | None => {
                calls.push(vec![*job]);
                bytes = more;
            }
        }
    }
    calls
}

/// Two calls of one that was refused, or the job that was in it alone.
pub fn halved(mut call: Vec<usize>) -> Result<[Vec<usize>; 2], Option<usize>> {
    if call.len() < 2 {
        return Err(call.pop());
    }
    let second = call.split_off(call.len() / 2);
    Ok([call, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_bounded_by_jobs_and_by_bytes() {
        let all: Vec<usize> = (0..2_500).collect();
        let lengths = |size: usize| -> Vec<usize> {
            let calls = in_calls(&all, |_| size);
            assert_eq!(calls.concat(), all, "every job once and in order");
            calls.iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(100), [1_000, 1_000, 500]);
        assert!(lengths(70_000).iter().all(|n| *n <= CALL_BYTES / 70_000));
        assert!(lengths(usize::MAX).iter().all(|n| *n == 1));
        assert!(in_calls(&[], |_| 1).is_empty());
    }

    #[test]
    fn halving_ends_at_one_job() {
        let mut calls = vec![(0..9).collect::<Vec<usize>>()];
        let mut alone = Vec::new();
        while let Some(call) = calls.pop() {
            match halved(call) {
                Ok(two) => calls.extend(two),
                Err(one) => alone.extend(one),
            }
        }
        alone.sort_unstable();
        assert_eq!(alone, (0..9).collect::<Vec<usize>>());
    }
}
