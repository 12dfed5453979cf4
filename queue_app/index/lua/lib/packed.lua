-- Tasks of a lane in two texts: their ids one after another, 16 bytes each, and their places as big-endian doubles. So a
-- lane takes two arguments, however many tasks it has.
local function unpack_ids(packed)
  local ids = {}
  for i = 1, #packed, 16 do ids[#ids + 1] = string.sub(packed, i, i + 15) end
  return ids
end

local function unpack_places(packed)
  local places = { struct.unpack('>' .. string.rep('d', #packed / 8), packed) }
  places[#places] = nil  -- the offset at which struct.unpack stopped
  return places
end
