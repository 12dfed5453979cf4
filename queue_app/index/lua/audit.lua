-- Looks for a lane that a profile can run and no claim would find, in up to 300 lanes or 100 queues per call. Pushes, claims and
-- releases keep all that it looks at in step, so what it finds was damaged from outside.
--
-- ARGV[1]  profile    ARGV[2]  cursor in the first queue ('0' at first)    ARGV[3..]  queues
-- Returns  {queues that are done, cursor in the next one, queue, what is wrong in it}; '' for the last two if nothing is wrong
--
-- Removes lanes without tasks from the set of lanes. Time opens limited gates and queues, and claims apply that late
-- (`refills`), so one that is closed is only wrong if nothing will open it.
--! include lane_heads
--! include walk
local p, q, fair, seen = ARGV[1], nil, nil, nil
local HIGHEST, LATE_US = 6e13, 60000000

local function is_sane(score) return score and tonumber(score) > -1e13 and tonumber(score) < HIGHEST end

-- Whether a queue or the group behind a gate should stand in a list, or have a refill, and has neither.
local function is_lost(g, room, at, standing)
  if standing then return not is_sane(standing) end
  if room <= 0 and not at then return false end
  local due = tonumber(redis.call('ZSCORE', REFILLS, g) or nil)
  return not due or due > (at or now_us()) + LATE_US
end

local function wrong_with_queue()
  if not first_of(queue_heads_key(p, q)) then return nil end
  local room, at = queue_room(q)
  if is_lost('q:' .. q, room, at, redis.call('ZSCORE', heads_key(p), q)) then return 'it is not among the heads' end
  for band = 0, fair and 4 or -1 do
    local last = redis.call('ZREVRANGE', turns_key(q, band), 0, 0, 'WITHSCORES')[2]
    if last and not (tonumber(last) < 1e13) then return 'a turn is too late' end
  end
  return nil
end

local function wrong_with_group(g)
  if seen[g] then return nil end
  seen[g] = true
  if redis.call('SISMEMBER', spots_key(g), p .. '\31' .. q) == 0 or redis.call('SISMEMBER', GATES, g) == 0 then
    return 'a gate does not know its lanes'
  end
  local entry, room, at = '\30' .. g, gate_room(g)
  if fair then entry = redis.call('HGET', nodes_key(p, q), g) end
  local standing = entry and redis.call('ZSCORE', queue_heads_key(p, q), entry)
  if select(2, first_of(REFILLS)) == '0' then return nil end  -- gates are being opened in steps
  if is_lost(g, room, at, standing) then return 'the lanes behind an open gate are not among the heads' end
  return nil
end

local function wrong_with_lane(lane, score)
  local g = group_of(p, lane)
  local who = fair and turn_owner(fair, lane)
  local function list_of(gate) return fair and turn_key(p, q, gate, who) or list_key(p, q, gate) end
  if redis.call('ZSCORE', list_of(g), lane) ~= score then return 'a lane is missing or misplaced' end
  if fair and not is_sane(redis.call('ZSCORE', list_key(p, q, g), who .. '\30')) then return 'an owner has no turn' end
  if g == '' then return nil end
  if redis.call('ZSCORE', list_of(''), lane) then return 'a lane stands twice' end
  return wrong_with_group(g)
end

local ready = redis.call('HGET', GENERATION, 'state') == 'ready' and redis.call('SISMEMBER', PROFILES, p) == 1
if not ready then return { #ARGV - 2, '0', '', '' } end
local wrong, wrong_queue = '', ''
local done, cursor = walk(2, 200, function(queue, at)
  q, fair, seen = queue, queue_policy(queue).fair, {}
  local found = at == '0' and wrong_with_queue()
  local page, types = redis.call('SSCAN', lanes_key(q), at, 'COUNT', 300), {}
  for _, lane in ipairs(page[2]) do
    local _, task_type = split_lane(lane)
    if not types[task_type] and redis.call('HEXISTS', types_key(q), task_type) == 0 then count_lane(lane, 1) end
    types[task_type] = true
    local id, score = first_of(lane_key(lane))
    if not id then
      unlist_lane(lane, q)
    elseif can_run(p, lane) then
      found = found or wrong_with_lane(lane, score)
    end
  end
  if found then wrong, wrong_queue = found, q end
  return page[1], found and math.huge or #page[2] + 1
end)
return { done, cursor, wrong_queue, wrong }
