-- Reads the first tasks over all queues and lanes of a profile, in order of their scores:
-- a merge of sorted lists that opens a queue or lane only when its turn comes. Writes nothing.
--
-- Returns: picks   {{id, queue, lane}, ...} in order, at most `limit`
--          stale   {lane -> ids that run already: copies that lag behind}
--          blocked queues that were met but are paused or at their cap
-- It reads one queue and one lane more than `limit`, which is enough if each yields a task.
-- So the picks count only when nothing stale or blocked was met; else clean up and repeat.
local function merge(profile, limit)
  local picks, stale, blocked = {}, {}, {}
  local rooms, lanes = {}, {}
  local queues = redis.call('ZRANGE', heads_key(profile), 0, limit, 'WITHSCORES')
  local next_queue = 1

  local function frontier()
    return next_queue < #queues and tonumber(queues[next_queue + 1]) or math.huge
  end

  local function open_queue()
    local q = queues[next_queue]
    next_queue = next_queue + 2
    rooms[q] = queue_room(q)
    if rooms[q] <= 0 then
      blocked[#blocked + 1] = q
      return
    end
    local heads = redis.call('ZRANGE', queue_heads_key(profile, q), 0, limit, 'WITHSCORES')
    for i = 1, #heads, 2 do
      lanes[#lanes + 1] = { name = heads[i], queue = q, score = tonumber(heads[i + 1]), read = 0, chunk = 2 }
    end
  end

  local function read_ahead(lane)
    local items = redis.call('ZRANGE', lane_key(lane.name), lane.read, lane.read + lane.chunk - 1, 'WITHSCORES')
    if #items == 0 then return false end
    local ids = {}
    for i = 1, #items, 2 do ids[#ids + 1] = items[i] end
    lane.items, lane.pos = items, 1
    lane.leased = redis.call('SMISMEMBER', LEASES, unpack(ids))
    lane.read = lane.read + #ids
    lane.chunk = math.min(lane.chunk * 4, 500)
    return true
  end

  -- Takes from one lane as long as no other lane or queue has an earlier task.
  local function take(lane, bound)
    while #picks < limit and rooms[lane.queue] > 0 do
      if (not lane.items or lane.pos > #lane.items) and not read_ahead(lane) then
        lane.score = math.huge
        return
      end
      lane.score = tonumber(lane.items[lane.pos + 1])
      if lane.score > bound then return end
      local id, leased = lane.items[lane.pos], lane.leased[(lane.pos + 1) / 2] == 1
      lane.pos = lane.pos + 2
      if leased then
        stale[lane.name] = stale[lane.name] or {}
        table.insert(stale[lane.name], id)
      else
        rooms[lane.queue] = rooms[lane.queue] - 1
        picks[#picks + 1] = { id, lane.queue, lane.name }
      end
    end
  end

  while #picks < limit do
    local best, second
    for i = 1, #lanes do
      local lane = lanes[i]
      if lane.score < math.huge and rooms[lane.queue] > 0 then
        if not best or lane.score < best.score then
          best, second = lane, best
        elseif not second or lane.score < second.score then
          second = lane
        end
      end
    end
    local queue_at = frontier()
    if queue_at < math.huge and (not best or queue_at <= best.score) then
      open_queue()
    elseif best then
      if not second and queue_at == math.huge then best.chunk = math.max(best.chunk, limit - #picks) end
      take(best, math.min(second and second.score or math.huge, queue_at))
    else
      break
    end
  end
  return picks, stale, blocked
end
