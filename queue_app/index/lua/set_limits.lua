-- Copies the limits of everything, a queue, a task type, or a key or family of keys, from their rows.
--
-- ARGV[1]  gate: 'a', 'q:queue', 't:type' or 'k:key'    ARGV[2]  '1' when a row has limits for it
-- ARGV[3..] field, value, ... as in the hash ('' for none); shares of a fair queue as 'share:name'
-- Returns  {1 when anything changed, what the caller must do next}: 'count': the leases must be counted (count_leases.lua), and
--          the limits copied again; 'forget': the same leases must be forgotten (count_leases.lua); 'open': gates may have
--          opened (refill.lua); '' for nothing
--
-- A cap of a type, of keys or of users counts what runs already. Up to 500 leases are counted at once. Of more, the limits take
-- effect when all have been counted; leases that begin meanwhile are counted by their claims.
--
-- When a queue with tasks starts or stops having lanes for each user, its tasks need other lanes; with another order they need
-- other places. Claims are then refused until the index is rebuilt.
--! include refills
--! include counting
local g, exists = ARGV[1], ARGV[2] == '1'
local kind, name = string.sub(g, 1, 1), string.sub(g, 3)
local key = kind == 'a' and SETTINGS or kind == 'q' and queue_key(name) or limit_key(g)
local before, after, shares = {}, {}, {}
for i = 3, #ARGV, 2 do
  local share = string.match(ARGV[i], '^share:(.*)$')
  if share then shares[share] = ARGV[i + 1] elseif ARGV[i + 1] ~= '' then after[ARGV[i]] = ARGV[i + 1] end
end
local fields = { 'paused', 'max_concurrent', 'burst', 'interval', 'delay', 'throttled', 'per_user', 'fair', 'by_user',
  'arrival' }
local stored = redis.call('HMGET', key, unpack(fields))
local since = tonumber(string.match(redis.call('HGET', key, 'since') or '', '^%d+$'))
local has_rate = after.interval or after.delay
local is_gated = after.per_user or (exists and (kind == 't' or kind == 'k'))
local known = kind == 'a' or redis.call('SISMEMBER', kind == 'q' and LIMITED or LIMITS, kind == 'q' and name or g) == 1
local changed = known ~= exists and (exists and next(after) ~= nil or known)
-- Parts of the copy that something else than this script removed or added.
local own = { since = true, gated = true, rows_ahead = true, promote_2 = true, promote_3 = true, promote_4 = true }
own.counting = true
for _, field in ipairs(fields) do own[field] = true end
for _, field in ipairs(redis.call('HKEYS', key)) do
  if not own[field] then redis.call('HDEL', key, field) end
end
if since and since > now_us() then since = nil end
if known and has_rate and not since then changed = true end
if known and is_gated and redis.call('HEXISTS', SETTINGS, 'gated') == 0 then changed = true end
if kind == 'q' and (redis.call('SISMEMBER', LIMITS, 'u:' .. name) == 1) ~= (after.per_user ~= nil) then changed = true end
for i, field in ipairs(fields) do
  before[field] = stored[i] or nil
  if before[field] ~= after[field] then changed = true end
end
if kind == 'q' then
  local old = redis.call('HGETALL', weights_key(name))
  local n = #old / 2
  for i = 1, #old, 2 do
    if shares[old[i]] ~= old[i + 1] then changed = true end
  end
  for _ in pairs(shares) do n = n - 1 end
  if n ~= 0 then changed = true end
end

-- The set of a gate's leases exists only while the gate has limits.
local set = kind == 'q' and 'u:' .. name or g
local must_count = kind == 'q' and after.per_user ~= nil or kind ~= 'q' and kind ~= 'a' and exists
local is_counting = redis.call('HEXISTS', key, 'counting') == 1
if not changed and not is_counting then return { 0, '' } end
local next_step = kind ~= 'a' and count_from_now(set, key, must_count, is_counting) or ''
if next_step == 'count' then return { 0, next_step } end

-- `since`: the instant (us) from which a rate has been known; before it the rate was unused.
for _, field in ipairs(fields) do redis.call('HDEL', key, field) end
for field, value in pairs(after) do redis.call('HSET', key, field, value) end
if not has_rate then
  redis.call('HDEL', key, 'since')
elseif not since then
  redis.call('HSET', key, 'since', whole(now_us()))
end

if is_gated then redis.call('HSET', SETTINGS, 'gated', '1') end
if kind == 'q' then
  redis.call(exists and 'SADD' or 'SREM', LIMITED, name)
  redis.call('DEL', weights_key(name))
  for who, share in pairs(shares) do redis.call('HSET', weights_key(name), who, share) end
  local reshaped = before.fair ~= after.fair or before.by_user ~= after.by_user or before.arrival ~= after.arrival
  if reshaped and redis.call('EXISTS', lanes_key(name), queue_leases_key(name)) > 0 then
    redis.call('HSET', GENERATION, 'state', 'rebuilding', 'reshaped', '1')
    return { 1, next_step }
  end
end

forget_policies()
redis.call('HSET', GENERATION, 'edited', whole(now_us()))
local family  -- prefix of the names of the gates whose room may have changed
if kind == 'q' then
  refresh_queue_everywhere(name)
  if before.per_user ~= after.per_user then family = 'u:' .. name .. '\30' end
elseif kind ~= 'a' then
  refresh_gate(g)
  if kind == 'k' then
    refresh_gate('f:' .. name)
    family = g .. ':'
  end
end
if family and redis.call('EXISTS', GATES) == 1 then
  refresh_family(family, '0')
  if next_step == '' and select(2, first_of(REFILLS)) == '0' then next_step = 'open' end
end
refresh_touched()
watch_refills()
wake_any()
return { 1, next_step }
