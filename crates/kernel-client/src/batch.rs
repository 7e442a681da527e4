//! How many requests go into one call: as many as the kernel accepts, and no more bytes
//! than it reads.
//!
//! Requests are named by their index, so that the caller keeps them where they are.

/// As many requests as the kernel accepts at once.
const MAX_REQUESTS: usize = 1_000;

/// Encoded bytes of one call. The kernel reads 16 MiB, so that even a single request beyond
/// this fits.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Splits `requests`, in order, by the encoded size of each.
pub fn split_into_batches(requests: &[usize], size: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0_usize;
    for request in requests {
        let more = size(*request);
        match batches.last_mut() {
            Some(batch)
                if batch.len() < MAX_REQUESTS && bytes.saturating_add(more) <= MAX_BYTES =>
            {
                batch.push(*request);
                bytes += more;
            }
            Some(_) | None => {
                batches.push(vec![*request]);
                bytes = more;
            }
        }
    }
    batches
}

/// Two batches of one that was rejected, or the request that was in it alone.
pub fn halve_batch(mut batch: Vec<usize>) -> Result<[Vec<usize>; 2], Option<usize>> {
    if batch.len() < 2 {
        return Err(batch.pop());
    }
    let second = batch.split_off(batch.len() / 2);
    Ok([batch, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_bounded_by_requests_and_by_bytes() {
        let all: Vec<usize> = (0..2_500).collect();
        let lengths = |size: usize| -> Vec<usize> {
            let batches = split_into_batches(&all, |_| size);
            assert_eq!(batches.concat(), all, "every request once and in order");
            batches.iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(100), [1_000, 1_000, 500]);
        assert!(lengths(70_000).iter().all(|n| *n <= MAX_BYTES / 70_000));
        assert!(lengths(usize::MAX).iter().all(|n| *n == 1));
        assert!(split_into_batches(&[], |_| 1).is_empty());
    }

    #[test]
    fn halving_ends_at_one_request() {
        let mut batches = vec![(0..9).collect::<Vec<usize>>()];
        let mut alone = Vec::new();
        while let Some(batch) = batches.pop() {
            match halve_batch(batch) {
                Ok(two) => batches.extend(two),
                Err(one) => alone.extend(one),
            }
        }
        alone.sort_unstable();
        assert_eq!(alone, (0..9).collect::<Vec<usize>>());
    }
}
