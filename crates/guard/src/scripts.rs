//! The Lua scripts: each does for many keys, in one round trip and as one step, what
//! would otherwise be a race between reading and writing.

use fred::types::scripts::Script;

/// How many messages or jobs one call carries. Redis serves nobody else meanwhile.
pub(crate) const CHUNK: usize = 1_000;

const LOCK: &str = r"
local function lock(key, epoch, mine, ttl)
  local held = redis.call('GET', key)
  if held and held ~= mine then
    local other = tonumber(string.match(held, '^(%d+):'))
    if not other or other >= tonumber(epoch) then return 0 end
  end
  redis.call('SET', key, mine, 'PX', ttl)
  return 1
end
";

/// KEYS: processed × n, inflight × n, locks. ARGV: n, inflight ttl, lock ttl, epoch,
/// holder, time × n. Answers for each message 1 if it was processed, then for each lock
/// 1 if it is ours.
const BEGIN: &str = r"
local n = tonumber(ARGV[1])
local out = {}
for i = 1, n do
  local time = ARGV[5 + i]
  if redis.call('GET', KEYS[i]) == time then
    out[i] = 1
  else
    redis.call('SET', KEYS[n + i], time, 'PX', ARGV[2])
    out[i] = 0
  end
end
for i = 2 * n + 1, #KEYS do
  out[#out + 1] = lock(KEYS[i], ARGV[4], ARGV[5], ARGV[3])
end
return out
";

/// KEYS: processed × n, inflight × n, locks. ARGV: n, processed ttl, holder, time × n.
const FINISH: &str = r"
local n = tonumber(ARGV[1])
for i = 1, n do
  redis.call('SET', KEYS[i], ARGV[3 + i], 'PX', ARGV[2])
  redis.call('DEL', KEYS[n + i])
end
for i = 2 * n + 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[3] then redis.call('DEL', KEYS[i]) end
end
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

/// KEYS: a counter. ARGV: ttl. The life time begins with the first count.
const COUNT: &str = r"
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n
";

pub(crate) struct Scripts {
    pub begin: Script,
    pub finish: Script,
    pub renew: Script,
    pub snapshot: Script,
    pub count: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            begin: Script::from_lua(format!("{LOCK}{BEGIN}")),
            finish: Script::from_lua(FINISH),
            renew: Script::from_lua(RENEW),
            snapshot: Script::from_lua(SNAPSHOT),
            count: Script::from_lua(COUNT),
        }
    }
}
