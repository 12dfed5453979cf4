-- Copies the limits of everything, a queue, a task type, or a key or family of keys, from their rows.
--
-- ARGV[1]  gate: 'a', 'q:queue', 't:type' or 'k:key'    ARGV[2]  '1' when a row has limits for it
-- ARGV[3..] field, value, ... as in the hash ('' for none); shares of a fair queue as 'share:name'
-- Returns  1 when anything changed
--
-- When a queue with tasks starts or stops having lanes for each user, its tasks need other lanes. Claims are then refused
-- until the index is rebuilt.
--! include wake
local g, exists = ARGV[1], ARGV[2] == '1'
local kind, name = string.sub(g, 1, 1), string.sub(g, 3)
local key = kind == 'a' and SETTINGS or kind == 'q' and queue_key(name) or limit_key(g)
local before, after, shares = {}, {}, {}
for i = 3, #ARGV, 2 do
  local share = string.match(ARGV[i], '^share:(.*)$')
  if share then shares[share] = ARGV[i + 1] elseif ARGV[i + 1] ~= '' then after[ARGV[i]] = ARGV[i + 1] end
end
local fields = { 'paused', 'max_concurrent', 'burst', 'interval', 'delay', 'throttled', 'per_user', 'fair', 'by_user' }
local stored = redis.call('HMGET', key, unpack(fields))
local since = tonumber(string.match(redis.call('HGET', key, 'since') or '', '^%d+$'))
local has_rate = after.interval or after.delay
local is_gated = after.per_user or (exists and (kind == 't' or kind == 'k'))
local known = kind == 'a' or redis.call('SISMEMBER', kind == 'q' and LIMITED or LIMITS, kind == 'q' and name or g) == 1
local changed = known ~= exists and (exists and next(after) ~= nil or known)
-- Parts of the copy that something else than this script removed or added.
local own = { since = true, gated = true, rows_ahead = true, promote_2 = true, promote_3 = true, promote_4 = true }
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
if not changed then return 0 end

-- `since`: the instant (us) from which a rate has been known; before it the rate was unused.
for _, field in ipairs(fields) do redis.call('HDEL', key, field) end
for field, value in pairs(after) do redis.call('HSET', key, field, value) end
if not has_rate then
  redis.call('HDEL', key, 'since')
elseif not since then
  redis.call('HSET', key, 'since', whole(now_us()))
end

-- The set of a gate's leases exists only while the gate has limits: this fills the sets of gates that got limits and
-- deletes the sets of gates that lost them.
local function recount()
  forget_policies()
  local all, gone = redis.call('HGETALL', LEASES), {}
  for i = 1, #all, 2 do
    local counts = {}
    for _, gate in ipairs(gates_of(all[i + 1])) do
      redis.call('SADD', held_key(gate), all[i])
      counts[gate] = true
    end
    local q, task_type, _, user, task_key = split_lane(all[i + 1])
    for _, gate in ipairs({ 't:' .. task_type, 'k:' .. task_key, 'u:' .. q .. '\30' .. user }) do
      if not counts[gate] then gone[gate] = true end
    end
  end
  for gate in pairs(gone) do redis.call('DEL', held_key(gate)) end
end

if is_gated then redis.call('HSET', SETTINGS, 'gated', '1') end
if kind == 'q' then
  redis.call(exists and 'SADD' or 'SREM', LIMITED, name)
  redis.call('DEL', weights_key(name))
  for who, share in pairs(shares) do redis.call('HSET', weights_key(name), who, share) end
  if redis.call(after.per_user and 'SADD' or 'SREM', LIMITS, 'u:' .. name) == 1 then recount() end
  local reshaped = before.fair ~= after.fair or before.by_user ~= after.by_user
  if reshaped and redis.call('EXISTS', lanes_key(name), queue_leases_key(name)) > 0 then
    redis.call('HSET', GENERATION, 'state', 'rebuilding', 'reshaped', '1')
    return 1
  end
elseif kind ~= 'a' and redis.call(exists and 'SADD' or 'SREM', LIMITS, g) == 1 then
  recount()
end

forget_policies()
local family  -- prefix of the names of the gates whose room may have changed
if kind == 'q' then
  refresh_queue_everywhere(name)
  if before.per_user ~= after.per_user then family = 'u:' .. name .. '\30' end
elseif kind ~= 'a' then
  family = g .. ':'
end
for _, gate in ipairs(family and redis.call('SMEMBERS', GATES) or {}) do
  if gate == g or string.sub(gate, 1, #family) == family then refresh_gate(gate) end
end
refresh_touched()
watch_refills()
wake_any()
return 1
