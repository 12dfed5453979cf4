-- Counts the waiting tasks and the leases of queues, about 1000 lanes or 100 queues per call: 3 ms.
--
-- ARGV[1]  cursor in the first queue ('0' at first)    ARGV[2..]  queues
-- Returns  {queues that are done, cursor in the next one, header, queue, leases, count, oldest score or '', ...}
--          with one pair for each band from critical on, then the next queue; a queue may come in parts.
--          header: {generation, state}
--
-- Most lanes hold one band, the same as the lane before, and no task older than the oldest found so far. Three cheap reads
-- confirm this: ZCOUNT beyond an end of a sorted set only reads that end and returns 0, at any size of the set.
--! include keys
--! include walk
local call = redis.call
local above = {}
for band = 0, 4 do above[band] = whole((band + 1) * 1e13) end

-- Counts a lane band by band; returns the band of its first task.
local function count_bands(key, rest, counts, oldest)
  local score = call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]
  local first_band
  while rest > 0 do
    local band = math.floor(tonumber(score) / 1e13)
    local further = rest > 1 and band < 4 and call('ZCOUNT', key, above[band], '+inf') or 0
    counts[band + 1] = counts[band + 1] + rest - further
    local known = oldest[band + 1]
    if not known or tonumber(score) < tonumber(known) then oldest[band + 1] = score end
    first_band, rest = first_band or band, further
    if rest > 0 then
      score = call('ZRANGEBYSCORE', key, above[band], '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    end
  end
  return first_band
end

local function count_lanes(lanes, counts, oldest)
  local band
  for _, lane in ipairs(lanes) do
    local key = lane_key(lane)
    local n = call('ZCARD', key)
    if band and call('ZCOUNT', key, above[band], '+inf') == 0
        and call('ZCOUNT', key, '-inf', '(' .. oldest[band + 1]) == 0 then
      counts[band + 1] = counts[band + 1] + n
    else
      band = count_bands(key, n, counts, oldest) or band
    end
  end
end

local counted = {}
local done, cursor = walk(1, 1000, function(q, cursor)
  local page = call('SSCAN', lanes_key(q), cursor, 'COUNT', 1000)
  local counts, oldest = { 0, 0, 0, 0, 0 }, {}
  count_lanes(page[2], counts, oldest)
  counted[#counted + 1] = q
  counted[#counted + 1] = call('ZCARD', queue_leases_key(q))
  for band = 1, 5 do
    counted[#counted + 1] = counts[band]
    counted[#counted + 1] = oldest[band] or ''
  end
  return page[1], #page[2] + 9
end)
local generation = call('HMGET', GENERATION, 'number', 'run_id', 'state')
local state = generation[2] == server_run() and true_state(generation[3]) or 'missing'
return { done, cursor, { tonumber(generation[1] or 0), state }, unpack(counted) }
