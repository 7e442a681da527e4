//! The Lua scripts: each does for many keys, in one round trip and as one step, what
//! would otherwise be a race between reading and writing.

use fred::types::scripts::Script;

/// How many messages or jobs one call carries. Redis serves nobody else meanwhile.
pub(crate) const CHUNK: usize = 1_000;

/// KEYS: processed × n, inflight × n, locks. ARGV: n, inflight ttl, lock ttl, epoch,
/// holder, time × n. Answers for each message 1 if it was processed, then for each lock
/// 1 if it is ours. What can be asked for all keys at once is: a call from Lua costs
/// more than the lookup it makes.
const BEGIN: &str = r"
local n = tonumber(ARGV[1])
local out = {}
if n > 0 then
  local seen = redis.call('MGET', unpack(KEYS, 1, n))
  for i = 1, n do
    local time = ARGV[5 + i]
    if seen[i] == time then
      out[i] = 1
    else
      redis.call('SET', KEYS[n + i], time, 'PX', ARGV[2])
      out[i] = 0
    end
  end
end
local mine, ttl = ARGV[5], ARGV[3]
for i = 2 * n + 1, #KEYS do
  local ours = 1
  if not redis.call('SET', KEYS[i], mine, 'NX', 'PX', ttl) then
    local holder = redis.call('GET', KEYS[i])
    local other = holder ~= mine and tonumber(string.match(holder, '^(%d+):'))
    if holder == mine or other and other < tonumber(ARGV[4]) then
      redis.call('SET', KEYS[i], mine, 'PX', ttl)
    else
      ours = 0
    end
  end
  out[#out + 1] = ours
end
return out
";

/// KEYS: processed × n, inflight × n, locks. ARGV: n, processed ttl, holder, time × n.
const FINISH: &str = r"
local n = tonumber(ARGV[1])
local gone = {}
for i = 1, n do
  redis.call('SET', KEYS[i], ARGV[3 + i], 'PX', ARGV[2])
  gone[i] = KEYS[n + i]
end
if #KEYS > 2 * n then
  local held = redis.call('MGET', unpack(KEYS, 2 * n + 1, #KEYS))
  for i, holder in ipairs(held) do
    if holder == ARGV[3] then gone[#gone + 1] = KEYS[2 * n + i] end
  end
end
if #gone > 0 then redis.call('UNLINK', unpack(gone)) end
return 1
";

/// KEYS: locks. ARGV: holder, ttl. Answers for each 1 if it was still ours.
const RENEW: &str = r"
local out = {}
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    out[i] = redis.call('PEXPIRE', KEYS[i], ARGV[2])
  else
    out[i] = 0
  end
end
return out
";

/// KEYS: the writer's lock, the snapshot. ARGV: token, lock ttl, content. The lock is
/// taken and released within, so it is respected and never left behind.
const SNAPSHOT: &str = r"
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[3])
redis.call('DEL', KEYS[1])
return 1
";

/// KEYS: whose Redis it is. ARGV: our ledger, ttl. Answers whose it is then.
const CLAIM: &str = r"
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
";

/// What the four breaker scripts begin with. KEYS: the failure counter, the circuit.
/// ARGV: failures that open it, ms it stays open, probes, successes that close it, ms
/// after which a silent probe is forgiven, ms that a replica has it open by itself, ms
/// that failures are remembered. Redis's own clock, because replicas' clocks differ.
///
/// What is found there is not believed blindly: a circuit is never open for longer than
/// a circuit can be, never kept for ever, and one that is not a circuit at all is removed.
macro_rules! breaker {
    ($rest:literal) => {
        concat!(
            r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function open(ms)
  redis.call('HSET', KEYS[2], 'until', string.format('%.0f', now + ms), 'probes', 0,
             'successes', 0, 'probed', 0)
  redis.call('PEXPIRE', KEYS[2], 86400000)
end
local c = redis.pcall('HMGET', KEYS[2], 'until', 'probes', 'successes', 'probed')
if c.err then
  redis.call('DEL', KEYS[2])
  c = {}
end
local till = c[1] and tonumber(c[1])
if till then
  local latest = now + tonumber(ARGV[2])
  if not (till <= latest) then
    till = latest
    redis.call('HSET', KEYS[2], 'until', string.format('%.0f', till))
  end
  if redis.call('PTTL', KEYS[2]) < 0 then redis.call('PEXPIRE', KEYS[2], 86400000) end
end
local probes, successes = tonumber(c[2] or 0) or 0, tonumber(c[3] or 0) or 0
local probed = tonumber(c[4] or 0) or 0
",
            $rest
        )
    };
}

/// Answers {go, state, a, b}: see `breaker::parse_script_answer`.
const BREAKER_ADMIT: &str = breaker!(
    r"
if not till then
  local share = tonumber(ARGV[6])
  if share > 0 then
    open(share)
    return {0, 1, share, 0}
  end
  return {1, 0, tonumber(redis.call('GET', KEYS[1]) or '0'), 0}
end
if now < till then return {0, 1, till - now, 0} end
if probes >= tonumber(ARGV[3]) then
  if probed <= now and now - probed < tonumber(ARGV[5]) then return {0, 2, probes, successes} end
  probes = 0
end
redis.call('HSET', KEYS[2], 'probes', probes + 1, 'probed', string.format('%.0f', now))
return {1, 2, probes + 1, successes}
"
);

/// The same answer, without a permit.
const BREAKER_READ: &str = breaker!(
    r"
if not till then return {1, 0, tonumber(redis.call('GET', KEYS[1]) or '0'), 0} end
if now < till then return {0, 1, till - now, 0} end
return {1, 2, probes, successes}
"
);

const BREAKER_SUCCEEDED: &str = breaker!(
    r"
if not till then return redis.call('DEL', KEYS[1]) end
if now < till then return 0 end
redis.call('HSET', KEYS[2], 'successes', successes + 1)
if successes + 1 >= tonumber(ARGV[4]) then redis.call('DEL', KEYS[1], KEYS[2]) end
return 0
"
);

const BREAKER_FAILED: &str = breaker!(
    r"
if till and now < till then return 0 end
local n = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
if till or n >= tonumber(ARGV[1]) then open(tonumber(ARGV[2])) end
return n
"
);

/// KEYS: counters. ARGV: 1 to count or 0 only to read, then for each: job, most, window
/// ms. Answers for each how many jobs were in the window, this one included. One that
/// is over the limit takes no place in it, so that what is refused now does not hold up
/// what comes later; and no counter grows beyond its limit.
const VELOCITY: &str = r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local count = ARGV[1] == '1'
local out = {}
for i = 1, #KEYS do
  local job, most, window = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local past = string.format('%.0f', now - window)
  local score = redis.call('ZSCORE', KEYS[i], job)
  local n = redis.call('ZCOUNT', KEYS[i], '(' .. past, '+inf')
  if score and tonumber(score) > now - window then
    out[i] = n
  else
    out[i] = n + 1
    if count and n < most then
      redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', past)
      redis.call('ZADD', KEYS[i], string.format('%.0f', now), job)
      redis.call('PEXPIRE', KEYS[i], window)
    end
  end
end
return out
";

pub(crate) struct Scripts {
    pub begin: Script,
    pub finish: Script,
    pub renew: Script,
    pub snapshot: Script,
    pub claim: Script,
    pub breaker_admit: Script,
    pub breaker_read: Script,
    pub breaker_succeeded: Script,
    pub breaker_failed: Script,
    pub velocity: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            begin: Script::from_lua(BEGIN),
            finish: Script::from_lua(FINISH),
            renew: Script::from_lua(RENEW),
            snapshot: Script::from_lua(SNAPSHOT),
            claim: Script::from_lua(CLAIM),
            breaker_admit: Script::from_lua(BREAKER_ADMIT),
            breaker_read: Script::from_lua(BREAKER_READ),
            breaker_succeeded: Script::from_lua(BREAKER_SUCCEEDED),
            breaker_failed: Script::from_lua(BREAKER_FAILED),
            velocity: Script::from_lua(VELOCITY),
        }
    }
}
