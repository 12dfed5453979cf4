--! include limits
-- A profile is what a worker can run: queues, task types, capabilities and slots. Workers that are alike share one.
local profile_ids
local function profiles()
  profile_ids = profile_ids or redis.call('SMEMBERS', PROFILES)
  return profile_ids
end

local registered
local function is_registered(p)
  if not registered then
    registered = {}
    for _, each in ipairs(profiles()) do registered[each] = true end
  end
  return registered[p]
end

local function can_run(p, lane)
  local q, task_type, capabilities, _, _, weight = split_lane(lane)
  if redis.call('SISMEMBER', profile_key(p, 'types'), task_type) == 0 then return false end
  if redis.call('SCARD', profile_key(p, 'queues')) > 0
      and redis.call('SISMEMBER', profile_key(p, 'queues'), q) == 0 then
    return false
  end
  for capability in string.gmatch(capabilities, '[^,]+') do
    if redis.call('SISMEMBER', profile_key(p, 'capabilities'), capability) == 0 then return false end
  end
  if weight > 1 then
    local slots = tonumber(redis.call('GET', profile_key(p, 'slots')) or nil)
    if slots and slots < weight then return false end
  end
  return true
end

local able = {}  -- queue, type, capabilities, weight -> profiles that can run it
local function profiles_for(lane)
  local q, task_type, capabilities, _, _, weight = split_lane(lane)
  local needs = q .. '\31' .. task_type .. '\31' .. capabilities .. '\31' .. weight
  if not able[needs] then
    local found = {}
    for _, p in ipairs(profiles()) do
      if can_run(p, lane) then found[#found + 1] = p end
    end
    able[needs] = found
  end
  return able[needs]
end
