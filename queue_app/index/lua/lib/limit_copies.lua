-- Copies the limits of one gate from its row.
--! include refills
--! include counting
local fields = { 'paused', 'max_concurrent', 'burst', 'interval', 'delay', 'throttled', 'per_user', 'fair', 'by_user',
  'arrival' }
-- Parts of the copy that something else than this script removed or added are deleted.
local own = { since = true, gated = true, rows_ahead = true, promote_2 = true, promote_3 = true, promote_4 = true,
  counting = true }
for _, field in ipairs(fields) do own[field] = true end

-- Whether the shares of a queue differ from those of its row.
local function differ(name, shares)
  local old = redis.call('HGETALL', weights_key(name))
  local n = #old / 2
  for i = 1, #old, 2 do
    if shares[old[i]] ~= old[i + 1] then return true end
  end
  for _ in pairs(shares) do n = n - 1 end
  return n ~= 0
end

-- Returns whether anything changed, and what the caller must do next, as in set_limits.lua.
local function copy_limits(g, exists, after, shares)
  local kind, name = string.sub(g, 1, 1), string.sub(g, 3)
  local key = kind == 'a' and SETTINGS or kind == 'q' and queue_key(name) or limit_key(g)
  local before, stored = {}, redis.call('HGETALL', key)
  for i = 1, #stored, 2 do
    if own[stored[i]] then before[stored[i]] = stored[i + 1] else redis.call('HDEL', key, stored[i]) end
  end
  local since = tonumber(string.match(before.since or '', '^%d+$'))
  local has_rate = after.interval or after.delay
  local is_gated = after.per_user or (exists and (kind == 't' or kind == 'k'))
  local known = kind == 'a' or redis.call('SISMEMBER', kind == 'q' and LIMITED or LIMITS, kind == 'q' and name or g) == 1
  local changed = known ~= exists and (exists and next(after) ~= nil or known)
  if since and since > now_us() then since = nil end
  if known and has_rate and not since then changed = true end
  if known and is_gated and not has_gate_limits() then changed = true end
  if kind == 'q' and (redis.call('SISMEMBER', LIMITS, 'u:' .. name) == 1) ~= (after.per_user ~= nil) then changed = true end
  for _, field in ipairs(fields) do
    if before[field] ~= after[field] then changed = true end
  end
  if kind == 'q' and (before.fair or after.fair) and differ(name, shares) then changed = true end

  -- The set of a gate's leases exists only while the gate has limits.
  local set = kind == 'q' and 'u:' .. name or g
  local must_count = kind == 'q' and after.per_user ~= nil or kind ~= 'q' and kind ~= 'a' and exists
  local is_counting = before.counting ~= nil
  if not changed and not is_counting then return false, '' end
  local next_step = kind ~= 'a' and count_from_now(set, key, must_count, is_counting) or ''
  if next_step == 'count' then return false, next_step end

  -- `since`: the instant (us) from which a rate has been known; before it the rate was unused.
  redis.call('HDEL', key, unpack(fields))
  for field, value in pairs(after) do redis.call('HSET', key, field, value) end
  if not has_rate then
    redis.call('HDEL', key, 'since')
  elseif not since then
    redis.call('HSET', key, 'since', whole(now_us()))
  end

  if is_gated then redis.call('HSET', SETTINGS, 'gated', '1') end
  forget_policies()
  if kind == 'q' then
    redis.call(exists and 'SADD' or 'SREM', LIMITED, name)
    redis.call('DEL', weights_key(name))
    for who, share in pairs(shares) do redis.call('HSET', weights_key(name), who, share) end
    local reshaped = before.fair ~= after.fair or before.by_user ~= after.by_user or before.arrival ~= after.arrival
    if reshaped and redis.call('EXISTS', lanes_key(name), queue_leases_key(name)) > 0 then
      redis.call('HSET', GENERATION, 'state', 'rebuilding', 'reshaped', '1')
      return true, next_step
    end
  end

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
  return true, next_step
end
