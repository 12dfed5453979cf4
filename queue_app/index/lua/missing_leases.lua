-- Lists the leases that are missing, incomplete, or another than the one that the row names.
--
-- ARGV     lane, n, id, leased_at_us, id, leased_at_us, ... (n pairs, at most 500), lane, n, ...
-- Returns  {id, id, ...}
--! include lanes
local missing, at = {}, 1
while at < #ARGV do
  local lane, n = address_of(ARGV[at]), tonumber(ARGV[at + 1])
  local q, gates = split_lane(lane), gates_of(lane)
  local is_known = redis.call('SISMEMBER', QUEUES, q) == 1
  for i = 1, n do
    local id, stamp = ARGV[at + 2 * i], ARGV[at + 2 * i + 1]
    local leased = redis.call('ZSCORE', queue_leases_key(q), id)
    local complete = is_known and leased and tonumber(leased) == tonumber(stamp)
      and redis.call('HGET', LEASES, id) == lane
    for _, g in ipairs(gates) do
      complete = complete and redis.call('SISMEMBER', held_key(g), id) == 1
    end
    if not complete then missing[#missing + 1] = id end
  end
  at = at + 2 + 2 * n
end
return missing
