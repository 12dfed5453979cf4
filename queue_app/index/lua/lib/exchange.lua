--! include heads
-- Turn-overs: a claim offers leases whose tasks have run. The transaction that grants the new tasks first ends those tasks, and
-- grants nothing unless the worker still held all of them. So the offered slots count as free in this claim. The old leases
-- stay until the rows have ended; meanwhile a plain claim counts both.
--
-- Several workers turn over at once. So each turn-over records its old and its new leases. Before its transaction only the old
-- tasks run, and after it only the new ones. So of its leases behind a gate, as many as the smaller of both numbers are not
-- needed, and another turn-over counts them as free. A record means something only while its leases exist: a release or a
-- repair of leases ends it.
local offer_slots, withdraw_slots  -- the others are local to a block: Lua allows 200 in a script
do
  local RECORD = 33  -- bytes of a lease in a record: '-' (old) or '+' (new), the id, 16 digits of its stamp
  local READ = 32    -- records of other workers that one call reads; where more meet, it finds fewer free slots

  -- Marks the queues and gates of the exchanged leases, so that `refresh_touched` shows or hides them as their room says.
  local function touch_exchanged(profile)
    for g in pairs(exchanged) do
      local q = string.match(g, '^q:(.*)$')
      if q then touch(profile, q, '') elseif g ~= 'a' then refresh_gate(g) end
    end
  end

  -- Counts a lease at each of its gates, if it still has this stamp; returns its queue.
  local function count_lease(counts, id, stamp)
    local address = redis.call('HGET', LEASES, id)
    local q = address and split_lane(address)
    local present = q and tonumber(redis.call('ZSCORE', queue_leases_key(q), id) or nil)
    if not present or present ~= tonumber(stamp) then return end
    for _, g in ipairs({ 'a', 'q:' .. q, unpack(gates_of(address)) }) do counts[g] = (counts[g] or 0) + 1 end
    return q
  end

  -- Whether there are more leases behind a gate than its cap allows.
  local function is_over(g)
    local q = string.match(g, '^q:(.*)$')
    local cap = g == 'a' and global_policy()[1] or g ~= 'a' and (q and queue_policy(q) or gate_policy(g)).cap
    return cap and tonumber(cap) < (g == 'a' and redis.call('HLEN', LEASES)
      or q and redis.call('ZCARD', queue_leases_key(q)) or redis.call('SCARD', held_key(g)))
  end

  -- Counts the slots of these gates that other workers turn over at this moment.
  local function count_under_way(worker, over)
    local records = redis.call('HRANDFIELD', EXCHANGES, READ, 'WITHVALUES')
    for i = 1, #records, 2 do
      local old, new, text = {}, {}, records[i + 1]
      for at = 1, records[i] ~= worker and #text or 0, RECORD do
        local counts = string.sub(text, at, at) == '-' and old or new
        count_lease(counts, string.sub(text, at + 1, at + 16), string.sub(text, at + 17, at + 32))
      end
      if records[i] ~= worker and not (old.a and new.a) then redis.call('HDEL', EXCHANGES, records[i]) end
      for g, n in pairs(old) do
        if over[g] then exchanged[g] = exchanged[g] + math.min(n, new[g] or 0) end
      end
    end
  end

  -- Counts leases: arguments id, stamp, id, stamp, ... from the given one on. A lease that was replaced has no slot to give.
  -- Returns the maximum number of tasks to propose, and whether that leaves slots to others. The maximum is the number of
  -- leases that end, because a worker has been woken for any other room. If other workers of the profile lack tasks, all work
  -- that waits is behind limits. Then a worker that holds more than its part of the slots of these queues leaves the rest to
  -- them, so that they work at the same time; the release of the exchanged leases wakes them. It keeps 16: fewer tasks at a
  -- time cost more each.
  function offer_slots(profile, worker, from)
    local queues, leased, waiting = {}, 0, redis.call('ZCARD', idle_key(profile))
    if redis.call('ZSCORE', idle_key(profile), worker) then waiting = waiting - 1 end
    for i = from, #ARGV, 2 do
      local q = count_lease(exchanged, ARGV[i], ARGV[i + 1])
      if q and not queues[q] then
        queues[q], leased = true, leased + redis.call('ZCARD', queue_leases_key(q))
      end
    end
    local offered, over = exchanged.a or 0, {}
    for g in pairs(exchanged) do over[g] = is_over(g) or nil end
    if next(over) then count_under_way(worker, over) end
    touch_exchanged(profile)
    refresh_touched()
    local part = waiting > 0 and math.max(16, math.ceil(leased / (waiting + 1))) or offered
    return math.min(part, offered), part < offered
  end

  -- From here on the offered leases count as any other. Records them with the leases that the claim got for them.
  function withdraw_slots(profile, worker, from, stamp)
    touch_exchanged(profile)
    exchanged = {}
    if #picks == 0 then return end
    local parts = {}
    for i = from, #ARGV, 2 do parts[#parts + 1] = '-' .. ARGV[i] .. string.format('%016.0f', ARGV[i + 1]) end
    for _, each in ipairs(picks) do parts[#parts + 1] = '+' .. each[1] .. string.format('%016.0f', stamp) end
    redis.call('HSET', EXCHANGES, worker, table.concat(parts))
  end
end
