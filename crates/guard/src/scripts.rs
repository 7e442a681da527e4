//! The Lua scripts: each does for many keys, in one round trip and as one step, what
//! would otherwise be a race between reading and writing.

use fred::types::scripts::Script;

/// How many messages or jobs one call carries. Redis serves nobody else meanwhile.
pub(crate) const CHUNK: usize = 1_000;

/// KEYS: processed × n, inflight × n, locks. ARGV: n, inflight ttl, lock ttl, epoch,
/// holder, time × n. Answers for each message 1 if it was processed, then for each lock
/// 1 if it is ours. What can be asked for all keys at once is: a call from Lua costs
/// more than the look-up it makes.
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
if #KEYS > 2 * n then
  local epoch, mine = tonumber(ARGV[4]), ARGV[5]
  local held = redis.call('MGET', unpack(KEYS, 2 * n + 1, #KEYS))
  for i, holder in ipairs(held) do
    local free = not holder or holder == mine
    if not free then
      local other = tonumber(string.match(holder, '^(%d+):'))
      free = other and other < epoch
    end
    if free then
      redis.call('SET', KEYS[2 * n + i], mine, 'PX', ARGV[3])
      out[#out + 1] = 1
    else
      out[#out + 1] = 0
    end
  end
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
            begin: Script::from_lua(BEGIN),
            finish: Script::from_lua(FINISH),
            renew: Script::from_lua(RENEW),
            snapshot: Script::from_lua(SNAPSHOT),
            count: Script::from_lua(COUNT),
        }
    }
}
