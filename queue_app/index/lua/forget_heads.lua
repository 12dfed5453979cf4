-- Deletes the heads of a profile that has no worker left, about 200 lists per call. Until that is done, no worker can register
-- under it.
--
-- ARGV[1]  profile    ARGV[2]  cursor ('0' at first)    ARGV[3..]  queues; none: the gates and what else there is, at last
-- Returns  {queues that are done, cursor in the next one}; without queues the next cursor, '0' when the profile is done
--! include heads
--! include walk
local AT_ONCE = 200
local profile = ARGV[1]
if is_registered(profile) then return ARGV[3] and { #ARGV - 2, '0' } or '0' end

-- Deletes a list; of one of a fair queue, the lists of its owners too. Returns whether that is done, and how much it deleted.
local function forget_list(of_queue, g)
  local key = list_key(profile, of_queue, g)
  local entries = redis.call('ZRANGE', key, 0, AT_ONCE - 1)
  for _, entry in ipairs(entries) do
    local who = split_entry(entry)
    if who then redis.call('DEL', turn_key(profile, of_queue, g, who)) end
  end
  redis.call('ZREMRANGEBYRANK', key, 0, AT_ONCE - 1)
  return redis.call('EXISTS', key) == 0, #entries
end

if ARGV[3] then
  return { walk(2, AT_ONCE, function(q)
    redis.call('ZREM', heads_key(profile), q)
    local is_done, n = forget_list(q, '')
    if is_done then redis.call('DEL', nodes_key(profile, q)) end
    return is_done and '0' or '1', n + 1
  end) }
end
local cursor = ARGV[2] == '-1' and '0' or ARGV[2]  -- -1: once more from the beginning
local page = redis.call('SSCAN', GATES, cursor, 'COUNT', 20)
for _, g in ipairs(page[2]) do
  for _, spot in ipairs(redis.call('SMEMBERS', spots_key(g))) do
    local p, of_queue = string.match(spot, '^([^\31]*)\31(.*)$')
    if p == profile then
      if not forget_list(of_queue, g) then return cursor == '0' and '-1' or cursor end
      redis.call('SREM', spots_key(g), spot)
    end
  end
  if redis.call('EXISTS', spots_key(g)) == 0 then redis.call('SREM', GATES, g) end
end
if page[1] == '0' then
  redis.call('DEL', heads_key(profile), watch_key(profile), at_key(profile))
  redis.call('HDEL', GENERATION, 'x:' .. profile)
end
return page[1]
